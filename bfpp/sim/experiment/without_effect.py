"""Given values that change nothing in a step, which may be a mistake.

Each is a row: what the value needs, and whether an experiment has it. What cannot be
combined at all is refused where it is used; what is here may be said of many experiments at
once, of which only some have experts, say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bfpp.schedules import Sharding
from bfpp.schedules.settings.offloading import OFF
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.values import DEFAULTS


class Need(NamedTuple):
    """Condition under which a value acts: its name, and whether an experiment meets it."""

    what: str
    met: Callable[[Experiment], bool]


def _overlaps_shared(experiment: Experiment) -> bool:
    experts = experiment.transformer.experts
    return experts is not None and bool(experts.shared) and experiment.ep > 1


def _has_blocks(experiment: Experiment) -> bool:
    chosen = experiment.configuration
    return any(steps["fused"].any() for steps in chosen.schedule.orders(chosen.layout))


def _has_constants(experiment: Experiment) -> bool:
    of_file, shipped = (
        each.require_physical() for each in (experiment, experiment.changed(constants=None))
    )
    return (of_file.cluster, of_file.implementation) != (shipped.cluster, shipped.implementation)


EXPERTS = Need("experts in the model", lambda each: each.transformer.experts is not None)
SENT = Need("--ep", lambda each: EXPERTS.met(each) and each.ep > 1)
TENSOR = Need("--tp", lambda each: each.tp > 1)
LENGTHS = Need("--lengths", lambda each: each.lengths is not None)
CHANCE = Need(
    "--lengths, --images, --jitter, --pauses or several observations of --routing",
    lambda each: any((each.lengths, each.images, each.routing, each.jitter, each.pauses)),
)
OFFLOAD = Need("--offload", lambda each: each.offload != OFF)

NEEDS = {
    "gather": Need("--sharding full", lambda each: each.sharding is Sharding.FULL),
    "norm": Need("--clipping", lambda each: each.clipping),
    "all_reduce": Need("--dp-replicate", lambda each: each.hybrid),
    "host_copy": OFFLOAD,
    "offload_ahead": OFFLOAD,
    "tied_all_reduce": Need("--tied-embeddings", lambda each: each.tied_embeddings),
    "prediction": Need(
        "a model with prediction modules",
        lambda each: each.changed(prediction=True).transformer.prediction_modules > 0,
    ),
    "sequence_parallel": TENSOR,
    "tp_overlap": TENSOR,
    "cp_comm": Need("--cp", lambda each: each.cp > 1),
    "capacity_factor": EXPERTS,
    "constants": Need(
        "other constants of this cluster or implementation in the file", _has_constants
    ),
    "forward_backward": Need("fused blocks", _has_blocks),
    "fused_experts": EXPERTS,
    "fused_router": EXPERTS,
    "shared_overlap": Need("shared experts, and --ep", _overlaps_shared),
    "expert_imbalance": EXPERTS,
    "packing": LENGTHS,
    "packed_length": LENGTHS,
    "attention_share": LENGTHS,
    "image_seconds": Need("--images", lambda each: each.images is not None),
    "expert_share": Need("--routing", lambda each: each.routing is not None),
    "sampled_steps": CHANCE,
    "sample_seed": CHANCE,
    "dispatch": SENT,
    "quantised_dispatch": SENT,
    "microbatch_overlap": SENT,
}
"""Of each value that acts in some experiments alone."""


def without_effect(experiment: Experiment) -> dict[str, str]:
    """The values that are not the defaults and change nothing, with their requirements."""
    return {
        name: need.what
        for name, need in NEEDS.items()
        if getattr(experiment, name) != DEFAULTS[name] and not need.met(experiment)
    }

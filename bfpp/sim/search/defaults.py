"""Values that a search tries if nobody says which: those that have a use, with the reason.

- Context parallelism: as many devices as leave each `LEAST_CONTEXT` tokens of a sequence.
- Expert parallelism: every number of devices among which experts divide.
- Groups of replicas (HSDP): beside one group, those that fill the fast network's domain.
- A cut: where layers do not divide into stages of the same size, the one that comes closest.
- Recomputation: nothing, all, and modules that cost little to compute again.
- Overlap of tensor-parallel collectives with GEMMs: chunk by chunk, which is never slower.
- Schedules: the paper's four, and of the zero-bubble family those that PyTorch has.

Software of a former year is searched as it was used.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from bfpp.schedules.families.registry import DEFAULT_SCHEDULES
from bfpp.schedules.layout.cut import CUTS
from bfpp.schedules.settings.attention import Attention
from bfpp.schedules.settings.recomputation import (
    EXPERT_ACTIVATION,
    LATENT_UP,
    MLP,
    NORM,
)
from bfpp.schedules.settings.tensor_overlap import TensorOverlap
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.software_profiles import Implementation
from bfpp.sim.models.model import Transformer
from bfpp.sim.search.problem import AS_NEEDED, EQUAL

USUAL_RISK = 0.1
"""Probability of running out of memory that the best may have."""

LEAST_CONTEXT = 4096
"""Tokens of a sequence that a context-parallel device has at least: of fewer, exchanges of keys and
values take longer than the attention that hides them."""

WITHOUT_BUBBLE = ("zb1p", "zb-v", "dualpipe-v")
"""Zero-bubble schedules that frameworks have."""

CHEAP = {
    "experts": ((NORM, EXPERT_ACTIVATION),),
    "latent": ((LATENT_UP,), (LATENT_UP, MLP)),
    "dense": ((NORM,), (NORM, MLP)),
}
"""Modules that cost little to compute again for what they keep, as recipes of such models do."""


def usual_schedules(implementation: Implementation) -> tuple[str, ...]:
    """Schedules of a search that names none."""
    return DEFAULT_SCHEDULES + (WITHOUT_BUBBLE if implementation.year is None else ())


def usual_ranges(model: Transformer, implementation: Implementation) -> dict[str, Any]:
    """Ranges of a search that says nothing of them."""
    if implementation.year is not None:
        return {"ep": (1,)}
    return {
        "cp": (),
        "ep": (),
        "dp_replicate": (),
        "cut": (AS_NEEDED,),
        "recompute": usual_policies(model, implementation),
        "tp_overlap": (str(TensorOverlap.CHUNKED),) if implementation.sequence_parallel else (),
    }


def usual_policies(model: Transformer, implementation: Implementation) -> tuple[str, ...]:
    """Policies of recomputation; fused attention keeps no scores that selective would drop."""
    kinds = [
        *(["experts"] if model.experts else ["dense"]),
        *(["latent"] if model.latent else []),
    ]
    cheap = [",".join(sorted(modules)) for kind in kinds for modules in CHEAP[kind]]
    selective = ["selective"] if implementation.attention is Attention.UNFUSED else []
    return ("none", *selective, *cheap, "full")


def context_sizes(model: Transformer, gpus: int) -> list[int]:
    """Sizes of context-parallel groups."""
    most = max(model.sequence // LEAST_CONTEXT, 1)
    return [size for size in divisors(gpus) if size <= most]


def expert_sizes(model: Transformer) -> list[int]:
    """Sizes of expert-parallel groups: each device has as many of the experts."""
    return divisors(model.experts.routed) if model.experts else [1]


def replica_groups(cluster: Cluster, sharing: int, dp: int) -> list[int]:
    """Numbers of groups of replicas, whose ranks of a stage are `sharing` devices each."""
    together = int(cluster.domain) // sharing
    whole = together > 1 and dp > together and dp % together == 0
    return [1, dp // together] if whole else [1]


def usual_cut(layers: int, stages: int) -> str:
    """The rule by which stages are cut where the one that is needed is taken."""
    if layers % stages == 0:
        return EQUAL
    even, fewer = CUTS
    return fewer if (layers + 2) % stages == 0 else even


def divisors(number: int) -> list[int]:
    """The whole numbers that divide it, the least first."""
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})

"""Options that several commands share, and what they stand for.

Options are turned into a `Scenario` in one place (`scenario`), so that every
command understands them alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

from bfpp.model_options import add_model_argument, model_of
from bfpp.numbers_given import seconds as seconds
from bfpp.numbers_given import whole_number as whole_number
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    InvalidInput,
    Layout,
    Schedule,
    Sharding,
    TaskGraph,
    build_graph,
    find_schedule,
    registered_schedules,
)
from bfpp.sim.abstract import AbstractCosts
from bfpp.sim.cluster import load_cluster
from bfpp.sim.costs import CostModel
from bfpp.sim.engines import DEFAULT as DEFAULT_ENGINE
from bfpp.sim.engines import ENGINES
from bfpp.sim.implementation import IMPLEMENTATIONS
from bfpp.sim.numbers import MOST_DEVICES, MOST_PASSES, MOST_RANKS
from bfpp.sim.physical import PhysicalCosts, default_stages_per_rank
from bfpp.sim.profile import ProfiledCosts, load_profile

ABSTRACT = {
    "forward": "forward pass of one micro-batch through one stage",
    "backward": "backward pass (default: the sum of its halves if they are given, else 2)",
    "backward_input": "input half of a backward pass (default: what the other leaves, or half)",
    "backward_weight": "weight half of a backward pass (default: what the other leaves, or half)",
    "transfer": "transfer between two ranks",
    "gather": "gather of one stage's weights",
    "reduce": "reduction of one stage's gradients",
    "optimizer": "optimizer step of a rank",
    "norm": "norm of a rank's gradients, with --clipping",
}

PHYSICAL_ONLY = ("tp", "dp", "microbatch_size", "implementation", "seq_length")


def add_choice(group: argparse._ArgumentGroup, name: str, default: StrEnum, purpose: str) -> None:
    """An option that takes one of an enumeration's values."""
    group.add_argument(
        name,
        choices=[str(each) for each in type(default)],
        default=str(default),
        help=f"{purpose} (default: {default})",
    )


def add_schedule_argument(parser: argparse.ArgumentParser) -> None:
    """SCHEDULE, by name."""
    parser.add_argument("schedule", metavar="SCHEDULE", help="; ".join(_summaries()))


def _summaries() -> list[str]:
    return [f"{name}: {schedule.summary}" for name, schedule in registered_schedules().items()]


def add_layout_arguments(parser: argparse.ArgumentParser) -> None:
    """How the model is cut, and into how many micro-batches the batch."""
    group = parser.add_argument_group("layout")
    group.add_argument(
        "--pp",
        type=whole_number,
        default=4,
        metavar="N",
        help="pipeline-parallel ranks (default: 4)",
    )
    group.add_argument(
        "--loops",
        type=whole_number,
        metavar="N",
        help="stages on each rank in a looped schedule (default: 1)",
    )
    group.add_argument(
        "--microbatches",
        type=whole_number,
        default=8,
        metavar="N",
        help="sequential micro-batches of a step (default: 8)",
    )
    group.add_argument(
        "--sequence",
        type=whole_number,
        metavar="N",
        help="micro-batches that depth-first runs together (default: as many as ranks)",
    )
    group.add_argument(
        "--stages-per-rank",
        type=whole_number,
        metavar="N",
        help="stages on each rank in a non-looped schedule, each gathered and reduced on its own "
        "(default: 1, or --loops where schedules are compared; with --model, one layer each)",
    )


def add_communication_arguments(parser: argparse.ArgumentParser) -> None:
    """What is communicated, and whether beside the compute."""
    group = parser.add_argument_group("communication")
    add_choice(
        group,
        "--sharding",
        Sharding.NONE,
        "what data parallelism shards: nothing, the optimizer state, or everything",
    )
    group.add_argument(
        "--no-overlap",
        action="store_true",
        help="transfers block the compute of both their ranks",
    )
    group.add_argument(
        "--no-data-overlap",
        action="store_true",
        help="gathers and reductions block the compute of their rank",
    )
    group.add_argument(
        "--clipping",
        action="store_true",
        help="gradients are clipped by their norm, which all ranks wait for",
    )


def add_cost_arguments(parser: argparse.ArgumentParser) -> None:
    """Abstract costs in seconds, or a model on a cluster; and the engine."""
    abstract = parser.add_argument_group("abstract costs, in seconds")
    defaults = {field.name: field.default for field in fields(AbstractCosts)}
    for name, what in ABSTRACT.items():
        default = "" if name.startswith("backward") else f" (default: {defaults[name]:g})"
        abstract.add_argument(
            f"--{name.replace('_', '-')}", type=seconds, metavar="S", help=what + default
        )
    physical = parser.add_argument_group("physical costs")
    add_model_argument(physical)
    physical.add_argument("--cluster", metavar="NAME|FILE", help="a preset, or a TOML file")
    physical.add_argument(
        "--tp", type=whole_number, metavar="N", help="tensor-parallel devices (default: 1)"
    )
    physical.add_argument(
        "--dp", type=whole_number, metavar="N", help="data-parallel devices (default: 1)"
    )
    physical.add_argument(
        "--microbatch-size",
        type=whole_number,
        metavar="N",
        help="samples in a micro-batch (default: 1)",
    )
    physical.add_argument(
        "--implementation",
        choices=list(IMPLEMENTATIONS),
        help="whose software: the paper's, which overlaps communication, or Megatron-LM's, "
        "which does not (default: paper)",
    )
    parser.add_argument_group("measured costs").add_argument(
        "--profile",
        metavar="FILE",
        help="a profile of a machine, as bfpp calibrate writes it, best for as many ranks",
    )
    parser.add_argument(
        "--engine",
        choices=list(ENGINES),
        default=DEFAULT_ENGINE,
        help=f"what replays the graph (default: {DEFAULT_ENGINE})",
    )


@dataclass(frozen=True)
class Scenario:
    """One schedule on one layout under one cost model."""

    schedule: Schedule
    layout: Layout
    communication: Communication
    costs: CostModel

    @property
    def physical(self) -> PhysicalCosts | None:
        """The cost model, if it is that of a model on a cluster."""
        return self.costs if isinstance(self.costs, PhysicalCosts) else None

    def graph(self) -> TaskGraph:
        """The task graph of the scenario."""
        return build_graph(self.schedule.name, self.layout, self.communication)


def scenario(options: argparse.Namespace, name: str) -> Scenario:
    """What the options say of the schedule of that name."""
    schedule = find_schedule(name)
    costs = _costs(options)
    return Scenario(
        schedule, layout(options, schedule, costs), communication(options, costs), costs
    )


def layout(
    options: argparse.Namespace, schedule: Schedule, costs: CostModel | None = None
) -> Layout:
    """The layout that the options give a schedule."""
    looped = schedule.placement == "looped"
    stages = options.loops or 1 if looped else options.stages_per_rank
    if looped and options.stages_per_rank not in (None, stages):
        raise InvalidConfiguration(
            "stages_per_rank", f"{schedule.name} is looped: its stages per rank are its --loops"
        )
    if not looped and options.loops not in (None, 1):
        raise InvalidConfiguration(
            "loops", f"{schedule.name} is not looped; --stages-per-rank splits its stages"
        )
    if isinstance(costs, PhysicalCosts) and costs.model.layers % options.pp:
        raise InvalidConfiguration(
            "pipeline_parallel",
            f"{costs.model.layers} layers cannot be divided over {options.pp} ranks",
        )
    if stages is None and isinstance(costs, PhysicalCosts):
        stages = default_stages_per_rank(schedule.name, costs.model, options.pp, 1)
    stages = stages or 1
    if (passes := options.pp * stages * options.microbatches) > MOST_PASSES:
        raise InvalidInput(
            f"--pp, --microbatches: {options.microbatches:,} micro-batches through "
            f"{options.pp * stages:,} stages are {passes:,} passes; at most {MOST_PASSES:,} "
            "can be simulated"
        )
    if options.pp > MOST_RANKS:
        raise InvalidInput(f"--pp: {options.pp:,} ranks; at most {MOST_RANKS:,} can be simulated")
    if isinstance(costs, PhysicalCosts):
        _require_devices(options.pp, costs)
    return Layout(
        pipeline_parallel=options.pp,
        microbatches=options.microbatches,
        stages_per_rank=stages,
        placement=schedule.placement,
        sequence=options.sequence,
    )


def _require_devices(ranks: int, costs: PhysicalCosts) -> None:
    devices = ranks * costs.tensor_parallel * costs.data_parallel
    if devices > MOST_DEVICES:
        raise InvalidInput(
            f"--pp, --tp, --dp: {devices:,} devices; at most {MOST_DEVICES:,} can be simulated"
        )


def communication(options: argparse.Namespace, costs: CostModel | None = None) -> Communication:
    """What the options, and a cluster's software, say of communication."""
    pipeline_overlap, data_overlap = not options.no_overlap, not options.no_data_overlap
    if isinstance(costs, PhysicalCosts):
        pipeline_overlap &= costs.implementation.pipeline_overlap
        data_overlap &= costs.implementation.data_overlap
    return Communication(
        Sharding(options.sharding), pipeline_overlap, data_overlap, options.clipping
    )


def _costs(options: argparse.Namespace) -> CostModel:
    given = {
        name: getattr(options, name) for name in ABSTRACT if getattr(options, name) is not None
    }
    if options.profile is not None:
        return _profiled(options, given)
    if options.model is None and options.cluster is None:
        for name in PHYSICAL_ONLY:
            if getattr(options, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise InvalidInput(f"{option}: needs --model and --cluster beside it")
        return AbstractCosts(**given)
    for name, other in (("model", "cluster"), ("cluster", "model")):
        if getattr(options, name) is None:
            raise InvalidConfiguration(name, f"must be given beside --{other}")
    for name in given:
        raise InvalidConfiguration(name, "abstract seconds do not go with --model and --cluster")
    return PhysicalCosts(
        model=model_of(options),
        cluster=load_cluster(options.cluster),
        tensor_parallel=options.tp or 1,
        data_parallel=options.dp or 1,
        microbatch_size=options.microbatch_size or 1,
        implementation=IMPLEMENTATIONS[options.implementation or "paper"],
    )


def _profiled(options: argparse.Namespace, given: Mapping[str, float]) -> ProfiledCosts:
    """The costs of a profile, which says all that other options could say of costs."""
    for name in (*given, "model", "cluster", *PHYSICAL_ONLY):
        if name != "dp" and getattr(options, name) is not None:
            raise InvalidConfiguration(name, "does not go with --profile")
    costs = load_profile(options.profile)
    if options.dp not in (None, costs.replicas):
        raise InvalidConfiguration(
            "data_parallel", f"{costs.name} was measured with {costs.replicas}, not {options.dp}"
        )
    return costs


def for_one_of(names: Sequence[str], options: argparse.Namespace, name: str) -> argparse.Namespace:
    """The options as they hold for one of several schedules of the same model.

    A non-looped schedule is given as many stages on a rank as the looped ones
    have loops, so that a stage costs the same in all of them. A sequence is for
    those that use it; if none does, it stays and is refused.
    """
    known = [find_schedule(each) for each in names]
    schedule, own = find_schedule(name), dict(vars(options))
    if not schedule.uses_sequence and any(each.uses_sequence for each in known):
        own["sequence"] = None
    if schedule.placement == "looped":
        return argparse.Namespace(**own | {"stages_per_rank": None})
    stages = options.stages_per_rank or (None if options.model else options.loops)
    return argparse.Namespace(**own | {"loops": None, "stages_per_rank": stages})


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Whether to answer a program rather than a person."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object (times in seconds) and no more"
    )


def refuse_text_beside_json(options: argparse.Namespace) -> None:
    """Standard output holds one or the other."""
    if options.json and options.text:
        raise InvalidConfiguration("text", "cannot be printed beside --json")

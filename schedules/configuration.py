"""How a training step is divided, ordered and communicated: all but what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from bfpp.schedules.communication import Communication, Sharding
from bfpp.schedules.degrees import Degrees
from bfpp.schedules.graph import TaskGraph
from bfpp.schedules.invalid import InvalidConfiguration
from bfpp.schedules.layout import Layout
from bfpp.schedules.lowering import build_graph
from bfpp.schedules.precision import Precision
from bfpp.schedules.recomputation import Recomputation
from bfpp.schedules.steps import Schedule
from bfpp.schedules.tensor_overlap import TensorOverlap

LAYOUTS = 1024
"""How many layouts are remembered, each with what has been worked out of it."""


@dataclass(frozen=True)
class Configuration:
    """A schedule on a grid of devices, and the batch that it divides.

    `loops` stages on each rank (virtual pipeline stages), of `units_per_stage` units each;
    `microbatches` of `microbatch_size` samples on each replica. `precision`, `recompute` and
    `tp_overlap` are the software's own if they are not given; `cut` is the layers of each stage, by
    default as equal as can be.

    >>> import bfpp
    >>> experiment = bfpp.Experiment("1f1b", pp=4, dp=2, microbatches=8, microbatch_size=4)
    >>> experiment.configuration.batch, experiment.configuration.layout
    (64, Layout(4, 8))
    """

    schedule: Schedule
    degrees: Degrees
    microbatches: int
    microbatch_size: int = 1
    loops: int = 1
    units_per_stage: int | tuple[int, ...] = 1
    communication: Communication = field(default_factory=Communication)
    precision: Precision | None = None
    recompute: Recomputation | None = None
    cut: tuple[int, ...] | None = None
    tp_overlap: TensorOverlap | None = None

    def __post_init__(self) -> None:
        if self.microbatch_size < 1:
            raise InvalidConfiguration(
                "microbatch_size", f"must be at least 1, not {self.microbatch_size}"
            )

    @property
    def batch(self) -> int:
        """Samples of a step (B)."""
        return self.degrees.dp * self.microbatch_size * self.microbatches

    @cached_property
    def layout(self) -> Layout:
        """Stages on ranks."""
        return _layout(
            self.schedule, self.degrees.pp, self.microbatches, self.loops, self.units_per_stage
        )

    @property
    def passes(self) -> int:
        """How often a micro-batch passes through a unit, forward."""
        return self.layout.units * self.layout.microbatches

    def require(self) -> None:
        """Raise `InvalidConfiguration` where the schedule cannot run."""
        self.schedule.require(self.layout)
        self.communication.require(copies=bool(self.layout.copies))
        if self.layout.copies and self.communication.sharding is Sharding.FULL:
            self.graph()  # only lowering shows whether copies meet for each run

    def graph(self) -> TaskGraph:
        """The task graph; raises `InvalidConfiguration` where the schedule cannot run."""
        return build_graph(self.schedule, self.layout, self.communication)


@lru_cache(LAYOUTS)
def _layout(
    schedule: Schedule,
    pp: int,
    microbatches: int,
    loops: int,
    units_per_stage: int | tuple[int, ...],
) -> Layout:
    """One object for all configurations that differ in nothing else."""
    return schedule.layout(pp, microbatches, loops, units_per_stage)

"""Configuration of a training step: schedule, degrees, layout, communication; no costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.families.registry import find_schedule, is_built_in
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.lowering import lower_steps, step_table, table_of
from bfpp.schedules.orders.steps import Schedule, forward_only
from bfpp.schedules.settings.degrees import Degrees
from bfpp.schedules.settings.precision import Precision
from bfpp.schedules.settings.recomputation import Recomputation
from bfpp.schedules.settings.sharding import Communication, Sharding
from bfpp.schedules.settings.tensor_overlap import TensorOverlap

LAYOUTS = 1024
"""Size of the cache of layouts, whose derived columns are cached with them."""


@dataclass(frozen=True)
class Configuration:
    """A schedule on a grid of devices, and the batch that it divides.

    `loops` stages on each rank (virtual pipeline stages), of `units_per_stage` units each;
    `microbatches` of `microbatch_size` samples on each replica. `precision`, `recompute` and
    `tp_overlap` default to the software's; `cut` is the layers of each stage, by
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
        return layout_of(
            self.schedule, self.degrees.pp, self.microbatches, self.loops, self.units_per_stage
        )

    @property
    def passes(self) -> int:
        """Forward passes of a step, over all units and micro-batches."""
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
def layout_of(
    schedule: Schedule,
    pp: int,
    microbatches: int,
    loops: int,
    units_per_stage: int | tuple[int, ...],
) -> Layout:
    """The layout that all configurations with these values share, with its derived columns."""
    return schedule.layout(pp, microbatches, loops, units_per_stage)


def build_graph(
    schedule: str | Schedule,
    layout: Layout,
    communication: Communication | None = None,
    *,
    evaluates: bool = False,
) -> TaskGraph:
    """The task graph of a schedule, or of the one of that name.

    If it `evaluates`, of the schedule's forward passes alone. Raises `InvalidConfiguration` where
    the schedule cannot run on the layout.

    >>> import bfpp
    >>> bfpp.build_graph("breadth-first", bfpp.Layout(4, 8, loops=2))
    <TaskGraph breadth-first: Layout(4, 8, loops=2), 252 tasks>
    """
    known = find_schedule(schedule) if isinstance(schedule, str) else schedule
    posts = known.posts
    if evaluates:  # what is posted for a training step, an evaluation does not need
        steps, posts = step_table([*map(forward_only, known.orders(layout))], layout), ()
    else:
        steps = table_of(known.joined_orders(layout), layout)
    graph = lower_steps(steps, layout, communication or Communication(), known.name, posts)
    return graph.checked() if is_built_in(known) else graph

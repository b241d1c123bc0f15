"""Difference of two timelines of one graph: errors of a prediction, by operation, lane and task.

Each counts from its own first start. Differences are simulated less measured,
and errors are relative to measured. Where both timelines were simulated, or
both measured, the first stands for the simulated one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bfpp.schedules import InvalidInput, Lane, Operation, Task
from bfpp.schedules.columns import Seconds
from bfpp.schedules.graph.comparison import differing_settings
from bfpp.schedules.graph.notebook import table
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.traces.explain.causes import Causes, mean_replica
from bfpp.traces.profiles.align_profile import align_trace
from bfpp.traces.profiles.import_profile import NOTHING
from bfpp.traces.timeline.memory_curves import curve_of
from bfpp.traces.timeline.memory_record import MemoryRecord
from bfpp.traces.timeline.metrics import lane_busy_time, rank_metrics
from bfpp.traces.timeline.timeline import Timeline
from bfpp.traces.timeline.units import GIGABYTE, in_words

WORST = 10
"""The number of tasks listed."""


class DifferentGraphs(InvalidInput):
    """Two timelines are not of the same step; the reason names the difference."""


@dataclass(frozen=True)
class Pair:
    """One number of both timelines."""

    simulated: float
    measured: float

    @property
    def difference(self) -> float:
        """Simulated less measured."""
        return self.simulated - self.measured

    @property
    def error(self) -> float | None:
        """Relative to measured; None where nothing was measured."""
        return self.difference / self.measured if self.measured else None


@dataclass(frozen=True)
class OperationDifference:
    """All tasks of one operation; seconds."""

    count: int
    total: Pair

    @property
    def mean(self) -> Pair:
        """Seconds of one task."""
        return Pair(self.total.simulated / self.count, self.total.measured / self.count)


@dataclass(frozen=True)
class LaneDifference:
    """A lane's busy seconds."""

    number: int
    lane: Lane
    busy: Pair


@dataclass(frozen=True)
class RankDifference:
    """A rank's compute, and the rest of the step, in seconds."""

    rank: int
    compute: Pair
    idle: Pair


@dataclass(frozen=True)
class MemoryDifference:
    """A rank's peak memory in each timeline, in bytes, and the task during which it is reached.

    Parts are those that both timelines have; `peak` is all of these.
    """

    rank: int
    peak: Pair
    parts: dict[str, Pair]
    simulated_task: Task
    measured_task: Task


@dataclass(frozen=True)
class TaskDifference:
    """One task; seconds, its starts from the step's first start."""

    task: Task
    start: Pair
    duration: Pair


@dataclass(frozen=True)
class ReplicaDifference:
    """A replica's compute on its mean rank, and what it waits for other replicas, in seconds."""

    replica: int
    compute: Pair
    waits: Pair


@dataclass(frozen=True, eq=False)
class Difference:
    """A prediction and a measurement of one graph; see `difference` for which is which.

    >>> import bfpp
    >>> graph = bfpp.build_graph("gpipe", bfpp.Layout(2, 4))
    >>> slow, fast = (bfpp.simulate(graph, bfpp.AbstractCosts(forward)) for forward in (2, 1))
    >>> compared = bfpp.difference(slow, fast)
    >>> compared.simulated.step_time, compared.measured.step_time
    (20.0, 15.0)
    """

    simulated: Timeline
    measured: Timeline

    def __repr__(self) -> str:
        return f"<Difference of {self.simulated!r} and {self.measured!r}>"

    def _repr_html_(self) -> str:
        """A table of both step times, and of their parts on the mean rank, for a notebook."""
        rows = [
            (
                name,
                in_words(pair.simulated),
                in_words(pair.measured),
                "" if pair.error is None else f"{pair.error:+.1%}",
            )
            for name, pair in {"step time": self.step_time, **self.mean_rank}.items()
            if pair.simulated or pair.measured
        ]
        return table(self.simulated.graph.schedule, [("", *self.names, "error"), *rows])

    @property
    def names(self) -> tuple[str, str]:
        """Names of the two timelines."""
        if self.measured.is_measured and not self.simulated.is_measured:
            return "simulated", "measured"
        return f"first ({self.simulated.source})", f"second ({self.measured.source})"

    @property
    def not_measured(self) -> str | None:
        """Tasks that an imported trace does not show, counted by operation."""
        unknown = self.measured.about.get("not_measured", NOTHING)
        return None if unknown == NOTHING else str(unknown)

    @property
    def step_time(self) -> Pair:
        """Seconds of the step."""
        return Pair(self.simulated.step_time, self.measured.step_time)

    @cached_property
    def operations(self) -> dict[Operation, OperationDifference]:
        """For each operation of the graph, the seconds of its tasks."""
        operation, codes = self.simulated.graph.operation, len(OPERATIONS)
        count = np.bincount(operation, minlength=codes).tolist()
        totals = [
            np.bincount(operation, timeline.duration, codes).tolist()
            for timeline in (self.simulated, self.measured)
        ]
        return {
            each: OperationDifference(count[each], Pair(totals[0][each], totals[1][each]))
            for each in OPERATIONS
            if count[each]
        }

    @cached_property
    def lanes(self) -> list[LaneDifference]:
        """For each lane, its busy time."""
        simulated, measured = map(lane_busy_time, (self.simulated, self.measured))
        return [
            LaneDifference(number, lane, Pair(float(simulated[number]), float(measured[number])))
            for number, lane in enumerate(self.simulated.graph.lanes)
        ]

    @cached_property
    def ranks(self) -> list[RankDifference]:
        """For each rank, its compute and its idle time."""
        both = zip(rank_metrics(self.simulated), rank_metrics(self.measured), strict=True)
        return [
            RankDifference(
                simulated.rank,
                Pair(simulated.compute_time, measured.compute_time),
                Pair(simulated.idle, measured.idle),
            )
            for simulated, measured in both
        ]

    @cached_property
    def replicas(self) -> list[ReplicaDifference]:
        """For each replica, its compute and its waits; empty unless both timelines have as many."""
        both = self.simulated.replicas, self.measured.replicas
        if both[0] is None or both[1] is None:
            return []
        known = [[mean_replica(each) for each in one.timelines] for one in both if one]
        places = zip(both[0].of_replica.tolist(), both[1].of_replica.tolist(), strict=False)
        return [
            ReplicaDifference(replica, *map(Pair, known[0][simulated], known[1][measured]))
            for replica, (simulated, measured) in enumerate(places)
        ]

    @cached_property
    def memory(self) -> list[MemoryDifference]:
        """For each rank, its peak memory; empty unless both timelines have it."""
        return [
            self._memory(*both)
            for both in zip(self.simulated.memory, self.measured.memory, strict=False)
        ]

    def _memory(self, *both: MemoryRecord) -> MemoryDifference:
        names = [name for name in both[0].during if name in both[1].during]
        timelines = self.simulated, self.measured
        known = [
            curve_of(timeline, record.only(names))
            for timeline, record in zip(timelines, both, strict=True)
        ]
        return MemoryDifference(
            both[0].rank,
            Pair(*(GIGABYTE * float(curve.total[curve.peak]) for curve in known)),
            {
                name: Pair(*(GIGABYTE * float(curve.parts[name][curve.peak]) for curve in known))
                for name in names
            },
            *(self.simulated.graph.task(int(curve.task[curve.peak])) for curve in known),
        )

    @cached_property
    def mean_rank(self) -> dict[str, Pair]:
        """The parts of the mean rank's step time: compute, and idle time by cause."""
        simulated, measured = (
            Causes(timeline).mean_rank for timeline in (self.simulated, self.measured)
        )
        return {name: Pair(simulated[name], measured[name]) for name in simulated}

    @cached_property
    def worst(self) -> list[TaskDifference]:
        """The tasks whose durations differ most, the worst first."""
        return self._most(self.simulated.duration - self.measured.duration)

    @cached_property
    def drifted(self) -> list[TaskDifference]:
        """The tasks whose starts differ most, the worst first."""
        return self._most(_from_first(self.simulated) - _from_first(self.measured))

    def _most(self, differences: Seconds) -> list[TaskDifference]:
        size = np.abs(differences)
        if self.not_measured:
            size[self.measured.duration == 0] = 0
        order = np.argsort(-size, kind="stable")[:WORST]
        return [self._task(number) for number in order[size[order] > 0].tolist()]

    def _task(self, number: int) -> TaskDifference:
        both = self.simulated, self.measured
        return TaskDifference(
            self.simulated.graph.task(number),
            Pair(*(float(each.start[number]) - each.first_start for each in both)),
            Pair(*(float(each.duration[number]) for each in both)),
        )


def difference(first: Timeline, second: Timeline) -> Difference:
    """Compare two timelines, in either order.

    An imported trace counts as the same step where its passes are the prediction's
    (`bfpp.traces.profiles.align_profile`). Raises `DifferentGraphs` if they are not of the same
    step.

    >>> import bfpp
    >>> graph = bfpp.build_graph("gpipe", bfpp.Layout(2, 4))
    >>> slow, fast = (bfpp.simulate(graph, bfpp.AbstractCosts(forward)) for forward in (2, 1))
    >>> bfpp.difference(slow, fast).mean_rank["compute"]
    Pair(simulated=16.0, measured=12.0)
    """
    differs = differing_settings(first.graph, second.graph)
    if first.is_measured and not second.is_measured:
        first, second = second, first
    if not differs:
        return Difference(first, second)
    aligned = align_trace(second, first)
    if aligned is None:
        raise DifferentGraphs(f"the timelines are of different steps; these differ in {differs}")
    return Difference(first, aligned)


def _from_first(timeline: Timeline) -> Seconds:
    """Starts since the first one."""
    return timeline.start - timeline.first_start

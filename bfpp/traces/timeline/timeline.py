"""Timeline: the times of each task, in one form for predictions and measurements.

Rules:

- Times are seconds on one clock for all ranks, whatever it counts from.
- A simulated task starts when the last of its predecessors ends. A measured one
  starts later, by the launch latency, and may seem to start earlier, by the error
  of a clock: nothing here relies on either.
- No task ends before it starts: where a clock shows that, it took no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from bfpp.core.rank_times import RankTimes, StepSums, step_sums
from bfpp.schedules import Task, TaskGraph
from bfpp.schedules.columns import Integers, Seconds
from bfpp.schedules.errors import InvalidConfiguration
from bfpp.traces.timeline.memory_record import MemoryRecord
from bfpp.traces.timeline.rank_times import rank_times
from bfpp.traces.timeline.renderers import FIGURE, NOTEBOOK, RENDERERS

if TYPE_CHECKING:  # plotly is slow to load, and only notebooks need it
    from plotly.graph_objects import Figure

MEASURED = "measured"
"""The source of a timeline that no engine made."""

About = Mapping[str, str | int | float]


@dataclass(frozen=True, eq=False, repr=False)
class Timeline:
    """A graph and the times, in seconds, at which its tasks started and ended.

    `source` is the name of the engine that made it, or `measured`. `about` has
    notes of its maker, such as the machine or the options.

    Measurements have two more columns: when the host handed a task over to its
    lane (`posted`), and when it first could have begun at one of its ends
    (`ready`), where it then waited for its peers.

    `memory` has the memory of each rank, where that is known, and `replicas` the timelines of all
    replicas, this one's among them, where they differ.

    >>> import bfpp
    >>> timeline = bfpp.simulate(bfpp.build_graph("gpipe", bfpp.Layout(2, 2)), bfpp.AbstractCosts())
    >>> timeline.step_time, timeline.start[:4], timeline.source
    (9.0, array([0., 1., 1., 1.]), 'compiled')
    """

    graph: TaskGraph
    start: Seconds
    end: Seconds
    source: str
    posted: Seconds | None = None
    ready: Seconds | None = None
    about: About = field(default_factory=dict)
    memory: Sequence[MemoryRecord] = ()
    replicas: Replicas | None = None

    def __post_init__(self) -> None:
        for name in ("start", "end"):  # of the type that compiled loops take
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), np.float64))
        if self.is_measured and (self.end < self.start).any():
            object.__setattr__(self, "end", np.maximum(self.start, self.end))

    def __repr__(self) -> str:
        return f"<Timeline of {self.graph!r}: {self.step_time:.6g} s, {self.source}>"

    def _repr_html_(self) -> str:
        """The figure for print, for a notebook."""
        drawn: str = RENDERERS[NOTEBOOK](self)
        return drawn

    def figure(self) -> Figure:
        """A plotly figure of each rank's compute and communication, for a notebook."""
        return RENDERERS[FIGURE](self)

    @property
    def is_measured(self) -> bool:
        """True if the tasks really ran."""
        return self.source == MEASURED

    @property
    def first_start(self) -> float:
        """The start of the first task: the step's begin."""
        return self._sums.first_start

    @property
    def step_time(self) -> float:
        """Seconds from the first start to the last end."""
        return self._sums.step_time

    @property
    def pass_seconds(self) -> float:
        """Seconds of forward and backward passes, of all ranks together; in pieces, count whole."""
        return self._sums.pass_seconds

    @cached_property
    def _sums(self) -> StepSums:
        return step_sums(self.start, self.end, self.graph.is_pass)

    @cached_property
    def rank_times(self) -> RankTimes:
        """Compute and exposed communication of each rank."""
        return rank_times(self.graph, self.start, self.end)

    @property
    def duration(self) -> Seconds:
        """Seconds that each task ran."""
        return self.end - self.start

    def lane_tasks(self, lane: int) -> Integers:
        """The tasks of a lane, in order."""
        return self.graph.lane_tasks.of(lane)

    def compute_tasks(self, rank: int) -> Integers:
        """A rank's forward and backward passes, in order."""
        return self.graph.compute_tasks.of(rank)

    def by_start(self, tasks: Integers) -> Integers:
        """The tasks sorted by start; those that started together in the given order."""
        return tasks[np.argsort(self.start[tasks], kind="stable")]

    def describe(self, number: int) -> tuple[Task, float, float]:
        """A task with its start and end."""
        return self.graph.task(number), float(self.start[number]), float(self.end[number])


@dataclass(frozen=True, eq=False)
class Replicas:
    """Timelines of one graph, on one clock; `of_replica` has the place of each replica's.

    `shown` is the replica whose timeline is the step's. The timelines are of replicas in as many
    `groups` of equal size: more than one with hybrid sharding.

    >>> import bfpp, numpy
    >>> step = bfpp.predict(bfpp.Experiment("gpipe", pp=2)).timeline
    >>> Replicas([step], numpy.zeros(4, int)).of(3) is step
    True
    """

    timelines: Sequence[Timeline]
    of_replica: Integers
    shown: int = 0
    groups: int = 1

    def of(self, replica: int) -> Timeline:
        """The timeline of a replica; raises `InvalidConfiguration` where there is none."""
        if not 0 <= replica < len(self.of_replica):
            last = len(self.of_replica) - 1
            raise InvalidConfiguration("replica", f"there is no {replica}: they are 0 to {last}")
        return self.timelines[int(self.of_replica[replica])]

    @property
    def place(self) -> int:
        """The place of the timeline that is the step's."""
        return int(self.of_replica[self.shown])

    def alike(self, place: int) -> list[int]:
        """The replicas that one timeline stands for."""
        numbers: list[int] = np.flatnonzero(self.of_replica == place).tolist()
        return numbers


def showing(timeline: Timeline, replica: int) -> Timeline:
    """The same step, by another replica; raises `InvalidConfiguration` where there is none."""
    if (replicas := timeline.replicas) is None:
        raise InvalidConfiguration("replica", "the timeline has one replica, that stands for all")
    other = replicas.of(replica)
    memory = timeline.memory if int(replicas.of_replica[replica]) == replicas.place else ()
    return replace(other, memory=memory, replicas=replace(replicas, shown=replica))

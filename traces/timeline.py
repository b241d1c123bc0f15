"""When each task ran: the one form of a prediction and of a measurement."""

from __future__ import annotations

from dataclasses import dataclass

from schedules import Task, TaskGraph
from schedules.columns import Integers, Seconds


@dataclass(frozen=True, eq=False)
class Timeline:
    """A graph and the times, in seconds, at which its tasks started and ended.

    `source` says who made it: the name of an engine, or `measured`.
    """

    graph: TaskGraph
    start: Seconds
    end: Seconds
    source: str

    @property
    def step_time(self) -> float:
        """Seconds from the first start to the last end."""
        return float(self.end.max() - self.start.min())

    @property
    def duration(self) -> Seconds:
        """Seconds that each task ran."""
        return self.end - self.start

    def lane_tasks(self, lane: int) -> Integers:
        """The tasks of a lane, in order."""
        return self.graph.lane_tasks.of(lane)

    def compute_tasks(self, rank: int) -> Integers:
        """A rank's forward and backward passes, in order."""
        own = self.graph.rank_tasks.of(rank)
        return own[self.graph.is_compute[own]]

    def describe(self, number: int) -> tuple[Task, float, float]:
        """A task with its start and end."""
        return self.graph.task(number), float(self.start[number]), float(self.end[number])

"""Causes of idle time: the critical path of a step, and the waits of each rank.

Theory of operation

- *Blockers.* A task can start when the last of its predecessors ends (its dependencies, and the
  task ahead on each of its lanes): that one is its blocker. A simulated task starts at once, a
  measured one some time later. Blockers from the last task to end back to the first are the
  critical path.
- *Idle stretches.* A rank idles before its first pass (warm-up), between passes, and after its
  last one (drain), until the step ends.
- *The walk back.* From the end of a stretch, follow blockers back until its begin: of the pass
  that ends the stretch, or of the last task of the step. Each task on the way, on whichever rank
  it ran, covers the part of the stretch in which it ran. A gap between a blocker's end and the
  start after it was lost before the start.
- *A cause for each part.* A task other than compute has the cause in its row of `LOOKS`. Compute
  is the bubble: warm-up, drain or other ranks' compute, by the stretch; but the share of a pass
  above the mean of its operation is imbalance. A task that frees a buffer, where compute on
  another lane starts after it, is a wait for the buffer. A gap is dispatch, except for the time in
  which a collective was ready (`Timeline.ready`) and its data-parallel peers were not.

Parts do not overlap and leave nothing out: the seconds of a wait sum to its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.operations.operations import OPERATIONS, collectives
from bfpp.traces.explain.looks import LOOKS, SHARES, Cause, Share
from bfpp.traces.timeline.metrics import compute_time
from bfpp.traces.timeline.timeline import Timeline

SAME = 1e-9
"""Relative difference of durations below which stages are balanced."""


@dataclass(frozen=True)
class Wait:
    """An idle stretch of a rank's compute, and its seconds by cause.

    `task` is the compute step that ends it (-1: the end of the training step),
    `blocker` the task that this one waited for. `gain` is by how many seconds
    the training step would end earlier without the wait, if that is known.
    """

    rank: int
    begin: float
    end: float
    task: int
    blocker: int
    seconds: dict[Cause, float]
    gain: float | None = None


class _Walked(NamedTuple):
    """Columns as memory views: reading one number is much faster than from an array."""

    start: memoryview[Any]
    end: memoryview[Any]
    excess: memoryview[Any]
    blocker: memoryview[Any]
    operation: memoryview[Any]
    lane: memoryview[Any]
    is_compute: memoryview[Any]


@dataclass(frozen=True, eq=False)
class Causes:
    """A timeline's tasks, each with the one that it started after."""

    timeline: Timeline

    @cached_property
    def blocker(self) -> Integers:
        """For each task, its blocker; -1 for those that wait for nothing.

        Of several that end at the same time, the one with the largest number.
        """
        graph, end = self.timeline.graph, self.timeline.end
        before = graph.predecessors
        blocker = np.full(len(graph), NONE, dtype=np.int32)
        waiting = np.flatnonzero(np.diff(before.start))
        first = before.start[waiting]
        if len(waiting):
            latest = np.maximum.reduceat(end[before.member], first)
            each = np.repeat(latest, np.diff(before.start)[waiting])
            candidate = np.where(end[before.member] == each, before.member, NONE)
            blocker[waiting] = np.maximum.reduceat(candidate, first)
        return blocker

    @cached_property
    def critical_path(self) -> list[int]:
        """The chain of tasks that determines the step time, first to last."""
        return list(self._back_from(self._last))[::-1]

    @cached_property
    def waits(self) -> list[Wait]:
        """Every idle stretch of every rank; their seconds sum to the ranks' idle time."""
        return [
            wait for rank in range(self.timeline.graph.layout.pp) for wait in self._waits_of(rank)
        ]

    @cached_property
    def idle(self) -> list[dict[Cause, float]]:
        """For each rank, its idle time by cause, without remainder."""
        ranks = self.timeline.graph.layout.pp
        total = [dict.fromkeys(Cause, 0.0) for _ in range(ranks)]
        for wait in self.waits:
            for cause, seconds in wait.seconds.items():
                total[wait.rank][cause] += seconds
        return total

    @cached_property
    def mean_rank(self) -> dict[str, float]:
        """The step time of the mean rank in seconds: compute, and idle time by cause."""
        seconds = {"compute": float(compute_time(self.timeline).mean())}
        return seconds | {
            str(cause): sum(idle[cause] for idle in self.idle) / len(self.idle) for cause in Cause
        }

    @cached_property
    def shares(self) -> dict[Share, float]:
        """The step time of the mean rank in four parts."""
        seconds = self.mean_rank
        return {Share.COMPUTE: seconds["compute"]} | {
            share: sum(seconds[cause] for cause in causes) for share, causes in SHARES.items()
        }

    @property
    def _last(self) -> int:
        """The task that ends last."""
        latest = np.flatnonzero(self.timeline.end == self.timeline.end.max())
        return int(latest[-1])

    @cached_property
    def _mean_seconds(self) -> Seconds:
        """For each task, the mean duration of its operation, in blocks and apart from them."""
        graph = self.timeline.graph
        kind = 2 * graph.operation.astype(np.int32) + (graph.block != NONE)
        mean = np.bincount(kind, self.timeline.duration) / np.maximum(np.bincount(kind), 1)
        of_task: Seconds = mean[kind]
        return of_task

    @cached_property
    def _excess(self) -> Seconds:
        """For each compute task, the share of its duration above the mean of its operation."""
        graph, duration = self.timeline.graph, self.timeline.duration
        mean = self._mean_seconds
        longer = graph.is_compute & (duration > mean * (1 + SAME))
        return np.divide(duration - mean, duration, out=np.zeros(len(graph)), where=longer)

    @cached_property
    def _walked(self) -> _Walked:
        """The columns that the walk back reads, one task at a time."""
        graph, timeline = self.timeline.graph, self.timeline
        return _Walked(
            start=timeline.start.data,
            end=timeline.end.data,
            excess=self._excess.data,
            blocker=self.blocker.data,
            operation=graph.operation.data,
            lane=graph.lane.data,
            is_compute=graph.is_compute.data,
        )

    @cached_property
    def _ends_buffer(self) -> list[bool]:
        """For each operation, whether it frees a buffer."""
        return [any(datum.buffer for datum in each.row.ends) for each in OPERATIONS]

    def _back_from(self, task: int) -> Iterator[int]:
        blocker = self._walked.blocker
        while task != NONE:
            yield task
            task = blocker[task]

    def _waits_of(self, rank: int) -> Iterator[Wait]:
        timeline = self.timeline
        own = timeline.by_start(timeline.compute_tasks(rank))
        begins = np.maximum.accumulate(np.append(timeline.start.min(), timeline.end[own]))
        ends = np.append(timeline.start[own], timeline.end.max())
        for place in np.flatnonzero(ends > begins).tolist():
            task = int(own[place]) if place < len(own) else NONE
            blocker = self._last if task == NONE else int(self.blocker[task])
            begin, end = float(begins[place]), float(ends[place])
            where = Cause.WARM_UP if place == 0 else Cause.OTHER_RANK
            where = Cause.DRAIN if task == NONE else where
            seconds = self._by_cause(begin, end, task, blocker, where)
            yield Wait(rank, begin, end, task, blocker, seconds)

    def _by_cause(
        self, begin: float, end: float, task: int, blocker: int, where: Cause
    ) -> dict[Cause, float]:
        """Cover a stretch with the tasks of the walk back from its end: seconds by cause."""
        seconds: dict[Cause, float] = {}

        def add(cause: Cause, amount: float) -> None:
            if amount > 0:
                seconds[cause] = seconds.get(cause, 0.0) + amount

        def add_late(on: int, begin: float, until: float) -> None:
            if until <= begin:
                return
            replicas = self._waited_for_replicas(on, begin, until)
            add(Cause.REPLICAS, replicas)
            add(Cause.DISPATCH, until - begin - replicas)

        walked, until, after = self._walked, end, task
        for on in self._back_from(blocker):
            if until <= begin:
                break
            # Measured tasks may overlap: each second is covered once, by the later of them.
            ended = min(max(walked.end[on], begin), until)
            started = min(max(walked.start[on], begin), ended)
            add_late(after, ended, until)
            unbalanced = (ended - started) * walked.excess[on]
            add(Cause.IMBALANCE, unbalanced)
            add(self._cause_of(on, after, where), ended - started - unbalanced)
            until, after = started, on
        add_late(after, begin, until)
        return seconds

    def _waited_for_replicas(self, task: int, begin: float, until: float) -> float:
        """Seconds of a stretch in which a collective was ready, but its peers were not."""
        ready, graph = self.timeline.ready, self.timeline.graph
        if ready is None or task == NONE:
            return 0.0
        if int(graph.operation[task]) not in collectives(graph.communication):
            return 0.0
        return max(until - max(begin, float(ready[task])), 0.0)

    def _cause_of(self, on: int, after: int, where: Cause) -> Cause:
        walked = self._walked
        operation = walked.operation[on]
        blocks_compute = (
            after != NONE and walked.is_compute[after] and walked.lane[on] != walked.lane[after]
        )
        if blocks_compute and self._ends_buffer[operation]:
            return Cause.BUFFER
        return LOOKS[OPERATIONS[operation]].cause or where


def mean_replica(timeline: Timeline) -> tuple[float, float]:
    """Seconds of a replica's mean rank: its compute, and its waits for other replicas."""
    parts = Causes(timeline).mean_rank
    return parts["compute"], parts[str(Cause.REPLICAS)]

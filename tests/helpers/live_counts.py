"""Activations and buffers alive on a rank over time, from the times of a timeline alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Integers, Seconds, among
from bfpp.schedules.operations.data import GRADIENTS, SAVED, WEIGHTS
from bfpp.schedules.operations.operations import enders, of_scope, writers
from bfpp.schedules.operations.row import Scope
from bfpp.traces.timeline.timeline import Timeline


class LiveCount(NamedTuple):
    """A count over time: `alive[i]` from `time[i]` on."""

    time: Seconds
    alive: Integers

    @property
    def peak(self) -> int:
        """The largest count."""
        return int(self.alive.max(initial=0))


def _level(begin: Seconds, end: Seconds) -> LiveCount:
    """The number of intervals alive over time; one that ends makes room first."""
    time = np.concatenate([end, begin])
    change = np.repeat([-1, 1], [len(end), len(begin)])
    in_order = np.argsort(time, kind="stable")
    time, alive = time[in_order], np.cumsum(change[in_order])
    settled = np.append(time[1:] != time[:-1], True)
    return LiveCount(time[settled], alive[settled].astype(np.int32))


def live_activations_over_time(timeline: Timeline, rank: int) -> LiveCount:
    """The number of (stage, micro-batch) activations alive on a rank."""
    graph = timeline.graph
    tasks = graph.rank_tasks.of(rank)
    begins = tasks[among(graph.operation[tasks], writers(SAVED))]
    ends = tasks[among(graph.operation[tasks], enders(SAVED))]
    return _level(timeline.start[begins], timeline.end[ends])


def weight_buffers_over_time(timeline: Timeline, rank: int) -> LiveCount:
    """The weight buffers in use: from the all-gather to the last use."""
    graph = timeline.graph
    tasks = graph.rank_tasks.of(rank)
    tasks = tasks[graph.weight_buffer[tasks] != NONE]
    opens = among(graph.operation[tasks], of_scope(Scope.UNIT, writers(WEIGHTS)))
    return _buffers_over_time(timeline, tasks, graph.weight_buffer[tasks], opens)


def gradient_buffers_over_time(timeline: Timeline, rank: int) -> LiveCount:
    """The gradient buffers in use: from the first backward pass to the reduction."""
    graph = timeline.graph
    tasks = graph.rank_tasks.of(rank)
    tasks = tasks[graph.gradient_buffer[tasks] != NONE]
    reduces = among(graph.operation[tasks], enders(GRADIENTS))
    buffer = graph.gradient_buffer[tasks]
    opens = np.zeros(len(tasks), dtype=bool)
    for number in np.unique(buffer):
        own = np.flatnonzero(buffer == number)
        opens[own[1:]] = reduces[own[:-1]]
    return _buffers_over_time(timeline, tasks, buffer, opens)


def _buffers_over_time(
    timeline: Timeline, tasks: Integers, buffer: Integers, opens: Flags
) -> LiveCount:
    """Spans of each buffer's uses; a task that `opens` begins a new span."""
    in_order = np.argsort(buffer, kind="stable")
    tasks, buffer, opens = tasks[in_order], buffer[in_order], opens[in_order]
    first = np.flatnonzero(np.append(True, opens[1:] | (buffer[1:] != buffer[:-1])))
    begin = np.minimum.reduceat(timeline.start[tasks], first)
    end = np.maximum.reduceat(timeline.end[tasks], first)
    return _level(begin, end)

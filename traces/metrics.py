"""Numbers of a timeline: bubble, utilisation, exposed communication, live buffers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Groups, Integers, Seconds, among, group_both_ends
from bfpp.schedules.communication import Communication
from bfpp.schedules.counts import peak_microbatches
from bfpp.schedules.graph import TaskGraph
from bfpp.schedules.operations import (
    DATA_PARALLEL,
    GRADIENTS,
    OPERATIONS,
    SAVED,
    WEIGHTS,
    Group,
    Operation,
    Scope,
    enders,
    of_scope,
    writers,
)
from bfpp.traces.timeline import Timeline

TRANSFERS = {Group.P2P}
REDUCTIONS = {*DATA_PARALLEL, Group.ENDS}
MODEL_PARALLEL = {Group.TP, Group.CP, Group.EP}
COMMUNICATING = TRANSFERS, REDUCTIONS, MODEL_PARALLEL


@dataclass(frozen=True)
class RankMetrics:
    """One rank's share of a step; times in seconds.

    `start` and `end` are those of its compute, from the step's first start, and
    `idle` is what of the step time it does not compute. `exposed_transfer`,
    `exposed_data` and `exposed_model` are how long it only communicates: a transfer
    (at either end), a gather or reduction, or what tensor-, context- and expert-parallel
    groups exchange runs while no compute step does.
    `peak_microbatches` is the most activations alive at once, in micro-batches
    that each take all of a rank's stages.
    """

    rank: int
    compute_time: float
    start: float
    end: float
    idle: float
    utilisation: float
    exposed_transfer: float
    exposed_data: float
    exposed_model: float
    peak_microbatches: float


def rank_metrics(timeline: Timeline) -> list[RankMetrics]:
    """The metrics of each rank.

    >>> import bfpp
    >>> timeline = bfpp.predict(bfpp.Experiment("1f1b", pp=4)).timeline
    >>> [rank.peak_microbatches for rank in bfpp.rank_metrics(timeline)]
    [4.0, 3.0, 2.0, 1.0]
    """
    graph, step_time = timeline.graph, timeline.step_time
    computes, peaks = compute_time(timeline).tolist(), peak_microbatches(graph).tolist()
    compute, communication = graph.compute_tasks, _communicating_tasks(graph)
    starts, ends = timeline.start[communication.member], timeline.end[communication.member]
    bounds = communication.start.tolist()
    table = []
    for rank, (seconds, peak) in enumerate(zip(computes, peaks, strict=True)):
        own = compute.of(rank)
        computing = _stretches(timeline.start[own], timeline.end[own])
        first = rank * len(COMMUNICATING)
        exposed = [
            _exposed(starts[begin:end], ends[begin:end], computing)
            for begin, end in pairwise(bounds[first : first + len(COMMUNICATING) + 1])
        ]
        busy = computing.seconds
        table.append(
            RankMetrics(
                rank=rank,
                compute_time=seconds,
                start=float(computing.start[0]) - timeline.first_start,
                end=float(computing.end[-1]) - timeline.first_start,
                idle=max(step_time - busy, 0.0),
                utilisation=busy / step_time if step_time else 1.0,
                exposed_transfer=exposed[0],
                exposed_data=exposed[1],
                exposed_model=exposed[2],
                peak_microbatches=peak,
            )
        )
    return table


def _communicating_tasks(graph: TaskGraph) -> Groups:
    """For each rank, of each of `COMMUNICATING`, the tasks that have an end there, in order."""
    kinds = len(COMMUNICATING)
    of_operation = np.full(len(OPERATIONS), NONE, dtype=np.int32)
    for number, groups in enumerate(COMMUNICATING):
        of_operation[communicating(groups, graph.communication)] = number
    kind = of_operation.take(graph.operation)
    tasks = np.flatnonzero(kind != NONE).astype(np.int32)
    kind, peer = kind[tasks], graph.peer[tasks]
    own = graph.rank[tasks] * kinds + kind
    others = np.where(peer == NONE, NONE, peer * kinds + kind)
    start, place = group_both_ends(own, others, graph.layout.pp * kinds)
    return Groups(start, tasks[place])


def communicating(groups: Collection[Group], communication: Communication) -> list[Operation]:
    """What such groups exchange for a stage or a micro-batch."""
    return [
        operation
        for operation in OPERATIONS
        if operation.group(communication) in groups and operation.row.scope is not Scope.RANK
    ]


def compute_time(timeline: Timeline) -> Seconds:
    """For each rank, the seconds in which its forward and backward passes compute."""
    return _rank_seconds(timeline, timeline.graph.is_compute)


def pass_time(timeline: Timeline) -> Seconds:
    """For each rank, the seconds of its passes: in pieces, with what they exchange inside."""
    return _rank_seconds(timeline, timeline.graph.is_pass)


def _rank_seconds(timeline: Timeline, chosen: Flags) -> Seconds:
    seconds = np.where(chosen, timeline.duration, 0.0)
    return np.bincount(timeline.graph.rank, seconds, timeline.graph.layout.pp).astype(float)


def bubble(timeline: Timeline) -> float:
    """Step time over a rank's mean time in passes, less one: the paper's overhead.

    Equals (N_PP - 1) / (N_mb N_loop) where communication is free. Passes in pieces count whole.

    >>> import bfpp
    >>> graph = bfpp.build_graph("gpipe", bfpp.Layout(4, 8))
    >>> bfpp.bubble(bfpp.simulate(graph, bfpp.AbstractCosts()))
    0.375
    """
    return bubble_of(timeline.step_time, timeline.pass_seconds, timeline.graph.layout.pp)


def bubble_of(step_time: float, pass_seconds: float, ranks: int) -> float:
    """The same of a step in which the passes of all ranks take so long together."""
    mean = pass_seconds / ranks
    return step_time / mean - 1 if mean else 0.0


def bubble_fraction(timeline: Timeline) -> float:
    """The share of the step time in which a mean rank runs no pass (zero bubble's measure)."""
    step = timeline.step_time
    return 1 - float(pass_time(timeline).mean()) / step if step else 0.0


def span(ranks: Iterable[RankMetrics]) -> float:
    """Of all ranks, the longest time from the first compute step to the end of the last."""
    return max(rank.end - rank.start for rank in ranks)


def lane_busy_time(timeline: Timeline) -> Seconds:
    """For each lane, the seconds in which it runs a task."""
    graph, lanes = timeline.graph, len(timeline.graph.lanes)
    received = graph.peer_lane != NONE
    busy = np.bincount(graph.lane, timeline.duration, lanes)
    busy += np.bincount(graph.peer_lane[received], timeline.duration[received], lanes)
    return busy.astype(float)


def exposed_time(timeline: Timeline, rank: int, chosen: Flags) -> float:
    """Seconds in which a rank runs a chosen task, at either end, but no compute step."""
    tasks = timeline.graph.rank_tasks.of(rank)
    compute = tasks[timeline.graph.is_compute[tasks]]
    computing = _stretches(timeline.start[compute], timeline.end[compute])
    communicating = tasks[chosen[tasks]]
    return _exposed(timeline.start[communicating], timeline.end[communicating], computing)


class Stretches(NamedTuple):
    """Times apart from each other in which something runs, in order."""

    start: Seconds
    end: Seconds

    @property
    def seconds(self) -> float:
        """How long they are together."""
        return float((self.end - self.start).sum())


def _stretches(start: Seconds, end: Seconds) -> Stretches:
    """When at least one of some tasks runs."""
    in_order = np.argsort(start, kind="stable")
    start, reached = start[in_order], np.maximum.accumulate(end[in_order])
    begins = np.ones(len(start) + 1, dtype=bool)
    begins[1:-1] = start[1:] > reached[:-1]
    return Stretches(start[begins[:-1]], reached[begins[1:]])


def _exposed(start: Seconds, end: Seconds, computing: Stretches) -> float:
    """Seconds in which one of some tasks runs while nothing is computed."""
    if not len(start):
        return 0.0
    start = np.append(computing.start, start)
    end = np.append(computing.end, end)
    return _stretches(start, end).seconds - computing.seconds


class LiveCount(NamedTuple):
    """How many of something are alive: `alive[i]` from `time[i]` on."""

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
    """The (stage, micro-batch) activations that a rank holds."""
    graph = timeline.graph
    tasks = graph.rank_tasks.of(rank)
    begins = tasks[among(graph.operation[tasks], writers(SAVED))]
    ends = tasks[among(graph.operation[tasks], enders(SAVED))]
    return _level(timeline.start[begins], timeline.end[ends])


def weight_buffers_over_time(timeline: Timeline, rank: int) -> LiveCount:
    """The weight buffers that hold what is still needed: from gather to last use."""
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

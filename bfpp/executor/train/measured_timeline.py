"""The measured timeline of a step, from the marks that lanes passed.

Each worker reports its own part in each task. Of all parts of a task, the
first that was ready says when it was ready, the last one when it could start: a
transfer starts when both ends are ready, a gather or a reduction when all
replicas are, an update with clipping when all ranks' norms are known. A
transfer ends when it has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bfpp.executor.dispatch.dispatch import Step
from bfpp.schedules import Operation, TaskGraph
from bfpp.schedules.columns import Seconds, among
from bfpp.schedules.operations.operations import collectives, updates
from bfpp.schedules.operations.row import Group
from bfpp.traces.timeline.timeline import Replicas, Timeline

POSTED, READY, START, END = range(4)

UNKNOWN = np.nan

Columns = dict[int, Seconds]
"""A process's measured columns of a step, by replica, at one of its tensor-parallel ranks."""


def columns_of(step: Step, graph: TaskGraph, clock_offset: float) -> Columns:
    """The measured columns of a step in this process: by replica, (POSTED to END, task).

    Of tensor-parallel ranks, the first one that it has stands for all. A worker whose passes are
    run by another runtime has their times of its own. Times are on the
    clock of process 0, which this one's is `clock_offset` ahead of. What the process does
    not know is not-a-number.
    """
    columns: Columns = {}
    first = min(part.worker.tp_rank for part in step.times)
    for part in step.times:
        if part.worker.tp_rank != first:
            continue
        if (replica := part.worker.replica) not in columns:
            columns[replica] = np.full((4, len(graph)), UNKNOWN)
        own, taken = columns[replica][:, part.task], part.worker.own_times.get(part.task)
        posted, ready, end = taken or (part.posted, part.ready.seconds(), part.end.seconds())
        own[POSTED] = np.fmin(own[POSTED], posted - clock_offset)
        own[READY] = np.fmin(own[READY], ready - clock_offset)
        own[START] = np.fmax(own[START], ready - clock_offset)
        # A transfer ends where it arrives; what copies do together, where it ends first.
        if not graph.is_transfer[part.task] or graph.peer[part.task] == part.worker.rank:
            own[END] = np.fmin(own[END], end - clock_offset)
    return columns


@dataclass(frozen=True)
class Span:
    """The span of a step on a process, from its first start to its last end.

    `is_shared`: what starts first is done with all replicas, and starts when
    the last of them is ready.
    """

    start: float
    end: float
    is_shared: bool

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.end - self.start


def span_of(columns: Columns, graph: TaskGraph) -> Span:
    """The span by the times of tasks, of one process of several; no transfer is first."""
    (own,) = columns.values()
    ready = np.where(graph.is_transfer, np.inf, own[START])
    first = int(np.nanargmin(ready))
    return Span(float(ready[first]), float(np.nanmax(own[END])), _is_shared(first, graph))


def span_of_all(columns: Columns, graph: TaskGraph, groups: int) -> Span:
    """The span by the times of all tasks, where one process has them all."""
    whole = merged([columns], graph, groups)
    return Span(float(whole[:, START].min()), float(whole[:, END].max()), False)


def span_of_marks(step: Step, first: Iterable[int], graph: TaskGraph, clock_offset: float) -> Span:
    """The span by marks: at the ends of lanes, and before the parts in tasks that are `first`."""
    ready: dict[int, list[float]] = {}
    for part in (step.times[number] for number in first):
        ready.setdefault(part.task, []).append(part.ready.seconds() - clock_offset)
    starts = {
        task: max(each) if _is_shared(task, graph) else min(each) for task, each in ready.items()
    }
    task = min(starts, key=starts.__getitem__)
    end = max(mark.seconds() for mark in step.last) - clock_offset
    return Span(starts[task], end, _is_shared(task, graph))


def _is_shared(task: int, graph: TaskGraph) -> bool:
    return int(graph.operation[task]) in collectives(graph.communication)


def merged(parts: Sequence[Columns], graph: TaskGraph, groups: int = 1) -> Seconds:
    """The merged columns of all processes, in (replica, POSTED to END, task).

    Replicas are in `groups` groups: those of one, or those at one place in each, start together.
    """
    replicas = sorted({replica for part in parts for replica in part})
    known = [[part[replica] for part in parts if replica in part] for replica in replicas]
    whole: Seconds = np.array([np.fmin.reduce(each) for each in known])
    whole[:, START] = [np.fmax.reduce(each)[START] for each in known]
    starts = whole.reshape(groups, -1, *whole.shape[1:])[:, :, START]
    for operation in collectives(graph.communication):
        across = operation.group(graph.communication) is Group.DP_REPLICATE
        tasks = graph.operation == operation
        starts[:, :, tasks] = starts[:, :, tasks].max(axis=0 if across else 1, keepdims=True)
    norms, last = graph.operation == Operation.NORM, among(graph.operation, updates())
    if norms.any():
        known = whole[:, END, norms].max(axis=1, keepdims=True)
        whole[:, START, last] = np.maximum(whole[:, START, last], known)
    return whole


def timeline_of(columns: Seconds, graph: TaskGraph, replica: int = 0) -> Timeline:
    """The timeline of one replica's step, from its first start on."""
    own = columns[replica] - columns[replica, START].min()
    return Timeline(graph, own[START], own[END], "measured", posted=own[POSTED], ready=own[READY])


def replicas_of(columns: Seconds, graph: TaskGraph, groups: int = 1) -> Replicas | None:
    """The timelines of all replicas' step, from its first start on; None of a single one."""
    if len(columns) == 1:
        return None
    own = columns - columns[:, START].min()
    timelines = [
        Timeline(graph, each[START], each[END], "measured", posted=each[POSTED], ready=each[READY])
        for each in own
    ]
    return Replicas(timelines, np.arange(len(timelines), dtype=np.int32), groups=groups)

"""From the marks that lanes passed to the timeline of a step.

Each worker tells of its own part in each task. Of all parts of a task, the
first that was ready says when it was ready, the last one when it could start: a
transfer starts when both ends are ready, a gather or a reduction when all
replicas are, an update with clipping when all ranks' norms are known. A
transfer ends when it has arrived.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from executor.dispatch import Step
from schedules import Operation, TaskGraph
from schedules.columns import Seconds, among
from traces.timeline import Timeline

POSTED, READY, START, END = range(4)

UNKNOWN = np.nan


def columns_of(step: Step, graph: TaskGraph, replicas: int, ahead: float) -> Seconds:
    """What this process knows of a step, in (replica, POSTED to END, task).

    Times are on the clock of process 0, which this one is `ahead` of. What the
    process does not know is not-a-number.
    """
    columns = np.full((replicas, 4, len(graph)), UNKNOWN)
    peer = graph.peer
    for part in step.times:
        own, ready = columns[part.worker.replica, :, part.task], part.ready.seconds()
        own[POSTED] = np.fmin(own[POSTED], part.posted)
        own[READY] = np.fmin(own[READY], ready)
        own[START] = np.fmax(own[START], ready)
        if peer[part.task] in (-1, part.worker.rank):
            own[END] = part.end.seconds()
    return columns - ahead


def merged(parts: Sequence[Seconds], graph: TaskGraph) -> Seconds:
    """What all processes know together."""
    joined = np.array(parts)
    whole: Seconds = np.fmin.reduce(joined)
    whole[:, START] = np.fmax.reduce(joined)[:, START]
    together = among(graph.operation, graph.communication.collectives)
    whole[:, START, together] = whole[:, START, together].max(axis=0)
    norms, updates = (graph.operation == each for each in (Operation.NORM, Operation.OPTIMIZER))
    if norms.any():
        known = whole[:, END, norms].max(axis=1, keepdims=True)
        whole[:, START, updates] = np.maximum(whole[:, START, updates], known)
    return whole


def timeline_of(columns: Seconds, graph: TaskGraph, replica: int = 0) -> Timeline:
    """The timeline of one replica's step, from its first start on."""
    own = columns[replica] - columns[replica, START].min()
    return Timeline(graph, own[START], own[END], "measured", posted=own[POSTED], ready=own[READY])

"""Residency of offloaded activations on their device, by the order of its passes alone.

Their memory is free once a pass has waited for the copy to the host: no later pass of its rank
begins before that has ended. It is needed again when the pass ends that the copy back waits for.
Activations whose copy to the host no pass waits for in between stay resident.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Integers, among
from bfpp.schedules.graph.task_columns import TaskColumns
from bfpp.schedules.operations.data import OFFLOADED
from bfpp.schedules.operations.operations import compute_steps, enders, writers


class Absences(NamedTuple):
    """Columns over offloaded activations.

    `offload` and `reload` are the tasks that copy them; they are not resident from the begin of the
    pass `leaves` to the end of the pass `returns`, both `NONE` where they stay.
    """

    offload: Integers
    reload: Integers
    leaves: Integers
    returns: Integers


def absences(graph: TaskColumns) -> Absences:
    """The offloaded activations of a graph, in the order of the copies to the host."""
    leaving, coming = (among(graph.operation, of(OFFLOADED)) for of in (writers, enders))
    passes = among(graph.operation, compute_steps())
    first, last = np.full((2, len(graph)), NONE, dtype=np.int32)
    task, on = graph.dependent, graph.dependencies.member
    waits = np.flatnonzero(passes[task] & leaving[on])[::-1]
    first[on[waits]] = task[waits]  # from the last task on, so that the first remains
    waits = np.flatnonzero(coming[task] & passes[on])
    np.maximum.at(last, task[waits], on[waits])
    offload, reload = (_by_cell(graph, each) for each in (leaving, coming))
    in_order = np.argsort(offload)
    offload, reload = offload[in_order], reload[in_order]
    leaves, returns = first[offload], last[reload]
    stays = (leaves == NONE) | (returns < leaves)
    leaves[stays] = returns[stays] = NONE
    return Absences(offload, reload, leaves, returns)


def _by_cell(graph: TaskColumns, chosen: Flags) -> Integers:
    """Tasks of one kind, of which each cell has one, by their cells."""
    tasks = np.flatnonzero(chosen).astype(np.int32)
    cell = graph.unit[tasks].astype(np.int64) * graph.layout.microbatches + graph.microbatch[tasks]
    return tasks[np.argsort(cell)]

"""When offloaded activations are away from a device, by the order of its passes alone.

Memory can be given to others once a pass has waited for the copy to the host: no later pass of its
rank begins before that is over. It is needed again when the pass ends that the copy back waits for.
Activations whose copy to the host no pass waits for in between stay where they are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Integers, among
from bfpp.schedules.graph import TaskGraph
from bfpp.schedules.operations import OFFLOADED, compute_steps, enders, writers


class Absences(NamedTuple):
    """Columns over offloaded activations.

    `offload` and `reload` are the tasks that copy them; they are away from the begin of the pass
    `leaves` to the end of the pass `returns`, both `NONE` where they stay.
    """

    offload: Integers
    reload: Integers
    leaves: Integers
    returns: Integers


def absences(graph: TaskGraph) -> Absences:
    """What is offloaded in a graph, in the order of the copies to the host."""
    leaving, coming = (among(graph.operation, of(OFFLOADED)) for of in (writers, enders))
    passes = among(graph.operation, compute_steps())
    first, last = np.full((2, len(graph)), NONE, dtype=np.int32)
    task, on = _edges(graph, passes, leaving)
    first[on[::-1]] = task[::-1]
    task, on = _edges(graph, coming, passes)
    last[task] = on
    offload, reload = (_by_cell(graph, each) for each in (leaving, coming))
    in_order = np.argsort(offload)
    offload, reload = offload[in_order], reload[in_order]
    leaves, returns = first[offload], last[reload]
    stays = (leaves == NONE) | (returns < leaves)
    leaves[stays] = returns[stays] = NONE
    return Absences(offload, reload, leaves, returns)


def _edges(graph: TaskGraph, of: Flags, on: Flags) -> tuple[Integers, Integers]:
    """The dependencies of some tasks on others, both in the order of their numbers."""
    start, member = graph.dependencies
    task = np.repeat(np.arange(len(graph), dtype=np.int32), np.diff(start))
    chosen = of[task] & on[member]
    task, member = task[chosen], member[chosen]
    in_order = np.lexsort((member, task))
    return task[in_order], member[in_order]


def _by_cell(graph: TaskGraph, chosen: Flags) -> Integers:
    """Tasks of one kind, of which each cell has one, by their cells."""
    tasks = np.flatnonzero(chosen).astype(np.int32)
    cell = graph.unit[tasks].astype(np.int64) * graph.layout.microbatches + graph.microbatch[tasks]
    return tasks[np.argsort(cell)]

"""The rule for fused blocks: two passes that follow one another, and begin and end as one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bfpp.schedules.columns import NONE
from bfpp.schedules.graph import TaskGraph
from bfpp.schedules.operations import Operation
from bfpp.schedules.validity.findings import Finding

PASSES = sorted((Operation.FORWARD, Operation.BACKWARD))


def blocks(graph: TaskGraph) -> Iterator[Finding]:
    """A forward and a whole backward pass, one after the other on their lane.

    The first waits for what both need, and others wait for the second.
    """
    in_block = np.flatnonzero(graph.block != NONE)
    if not len(in_block):
        return
    ahead, behind = graph.lane_neighbours
    behind_of = dict(zip(ahead.tolist(), behind.tolist(), strict=True))
    for first in np.unique(graph.block[in_block]).tolist():
        tasks = in_block[graph.block[in_block] == first]
        passes = sorted(graph.operation[tasks].tolist())
        if tasks[0] != first or passes != PASSES or behind_of.get(first) != tasks[-1]:
            named = ", ".join(str(graph.task(task)) for task in tasks.tolist())
            message = f"{named} are not a forward and a backward pass that follow one another"
            yield message, tuple(tasks.tolist())
    waits, needed = graph.dependent, graph.dependencies.member
    early = (graph.block[waits] != NONE) & (graph.block[waits] != waits)
    for task in np.unique(waits[early]).tolist():
        yield f"{graph.task(task)} waits on its own, not with its block", (task,)
    early = graph.block[needed] == needed
    for task, first in zip(waits[early].tolist(), needed[early].tolist(), strict=True):
        message = f"{graph.task(task)} waits for {graph.task(first)} alone, not for its block"
        yield message, (task, first)

"""The rule for fused blocks: two passes that follow one another, and begin and end as one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bfpp.schedules.columns import NONE
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.operations.operations import Operation
from bfpp.schedules.validity.findings import Finding

PASSES = sorted((Operation.FORWARD, Operation.BACKWARD))


def blocks(graph: TaskGraph) -> Iterator[Finding]:
    """A forward and a whole backward pass, one after the other on their lane.

    The first waits for what both need, and others wait for the second.
    """
    in_block = np.flatnonzero(graph.block != NONE)
    in_block = in_block[np.argsort(graph.block[in_block], kind="stable")]
    first, start, count = np.unique(graph.block[in_block], return_index=True, return_counts=True)
    ahead, behind = graph.lane_neighbours
    follower = np.full(len(graph), NONE, dtype=np.int32)
    follower[ahead] = behind
    one, other = in_block[start], in_block[start + count - 1]
    passes = np.sort(graph.operation[np.stack([one, other])], axis=0)
    right = (count == len(PASSES)) & (passes.T == PASSES).all(axis=1)
    right &= (one == first) & (follower[one] == other)
    for at in np.flatnonzero(~right).tolist():
        tasks = in_block[start[at] : start[at] + count[at]].tolist()
        named = ", ".join(str(graph.task(task)) for task in tasks)
        message = f"{named} are not a forward and a backward pass that follow one another"
        yield message, tuple(tasks)
    waits, needed = graph.dependent, graph.dependencies.member
    early = (graph.block[waits] != NONE) & (graph.block[waits] != waits)
    for task in np.unique(waits[early]).tolist():
        yield f"{graph.task(task)} waits on its own, not with its block", (task,)
    early = graph.block[needed] == needed
    for task, first in zip(waits[early].tolist(), needed[early].tolist(), strict=True):
        message = f"{graph.task(task)} waits for {graph.task(first)} alone, not for its block"
        yield message, (task, first)

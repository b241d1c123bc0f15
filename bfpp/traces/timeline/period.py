"""Period: the time from step to step where many follow each other.

Theory of operation

A rank begins its next step once its own optimizer has ended, whatever the others do. So, in terms
of the times x at which ranks begin, rank i ends at the largest of x_j + L_ij over all ranks j,
where L_ij is the longest path from the begin of j to the end of i: a step is a linear map in
max-plus algebra. Repeated, the ends grow by the largest mean of a cycle in L, through the steps
and the ranks: the period.

- `_step` computes L. Tasks are numbered topologically, so one pass over them in order is enough;
  `_blocks` cuts them into ranges that one reduction of numpy handles at a time. Ranks j are taken
  in parts, so that at most `AT_ONCE` path lengths are in memory.
- `_largest_cycle_mean` takes the largest mean of a cycle from L, by Karp's theorem.

Exact where tasks take as long in every step as they do in this one. (Baccelli et al.,
Synchronization and Linearity, 1992; Karp, A characterization of the minimum cycle mean, 1978.)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE, Groups, Integers, Seconds, group_by
from bfpp.traces.timeline.timeline import Timeline

AT_ONCE = 2**24
"""Path lengths in memory at once."""

Lengths = npt.NDArray[np.float64]
"""Of longest paths, from a rank's begin (column) to a task's or a rank's end (row)."""


def period(timeline: Timeline) -> float:
    """Seconds from the end of a step to the end of the next, in the long run."""
    graph = timeline.graph
    ranks = np.arange(graph.layout.pp)
    waits, blocks = _waits(graph), _blocks(graph)
    parts = -(-len(graph) * len(ranks) // AT_ONCE)
    lengths = [
        _step(graph, timeline.duration, waits, blocks, begins)
        for begins in np.array_split(ranks, min(parts, len(ranks)))
    ]
    return _largest_cycle_mean(np.hstack(lengths))


def _waits(graph: TaskGraph) -> Groups:
    """The predecessors of each task: other tasks, and its ranks' begins, numbered after them."""
    ahead, behind = graph.lane_neighbours
    tasks = np.arange(len(graph), dtype=np.int32)
    received = np.flatnonzero(graph.peer != NONE).astype(np.int32)
    task = [graph.dependent, behind, tasks, received]
    after = [
        graph.dependencies.member,
        ahead,
        len(graph) + graph.rank,
        len(graph) + graph.peer[received],
    ]
    return group_by(np.concatenate(task), np.concatenate(after), len(graph))


def _blocks(graph: TaskGraph) -> list[tuple[int, int]]:
    """Ranges of tasks without a dependency between two of the same range."""
    latest = np.full(len(graph), NONE, dtype=np.int32)
    ahead, behind = graph.lane_neighbours
    np.maximum.at(latest, graph.dependent, graph.dependencies.member)
    np.maximum.at(latest, behind, ahead)
    return list(_stretches(latest.tolist()))


def _stretches(latest: list[int]) -> Iterator[tuple[int, int]]:
    first = 0
    for task, other in enumerate(latest):
        if other >= first:
            yield first, task
            first = task
    yield first, len(latest)


def _step(
    graph: TaskGraph,
    duration: Seconds,
    waits: Groups,
    blocks: list[tuple[int, int]],
    begins: npt.NDArray[np.intp],
) -> Lengths:
    """The longest paths from some ranks' begins to every rank's end."""
    tasks, ranks = len(graph), graph.layout.pp
    length = np.full((tasks + ranks, len(begins)), -np.inf)
    length[tasks + begins, np.arange(len(begins))] = 0.0
    for first, last in blocks:
        start = waits.start[first:last]
        before = length[waits.member[start[0] : waits.start[last]]]
        length[first:last] = np.maximum.reduceat(before, start - start[0])
        length[first:last] += duration[first:last, None]
    ends = np.full((ranks, len(begins)), -np.inf)
    own = _last_of_lanes(graph)
    np.maximum.at(ends, graph.rank[own], length[own])
    return ends


def _last_of_lanes(graph: TaskGraph) -> Integers:
    """The last task without a peer of each lane: it ends after all others of the lane."""
    own = np.flatnonzero(graph.peer == NONE)
    last: Integers = np.full(len(graph.lanes), NONE, dtype=np.int32)
    np.maximum.at(last, graph.lane[own], own.astype(np.int32))
    without_empty: Integers = last[last != NONE]
    return without_empty


def _largest_cycle_mean(lengths: Lengths) -> float:
    """The largest mean of a cycle, by Karp: max over ranks of min over k of (D_n - D_k) / (n - k).

    D_k is the longest walk of k steps that ends at a rank, n the number of ranks.
    """
    steps = len(lengths)
    walks = [np.zeros(steps)]
    for _ in range(steps):
        walks.append((lengths + walks[-1]).max(axis=1))
    shorter = np.arange(steps)[:, None]
    gains = (walks[-1] - np.array(walks[:-1])) / (steps - shorter)
    return float(gains.min(axis=0).max())

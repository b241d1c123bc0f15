"""Happens-before: which tasks have ended when another one starts, however long anything takes.

A task starts once it heads its lane (a transfer: both its lanes) and its dependencies have
ended. So it waits for its dependencies and for the task before it on each of its lanes
(`graph.followers`). Nothing here knows what tasks mean.

- `replay` runs all lanes in order with unbuffered sends, and marks tasks that never start.
- `waits` explains why each of a cycle of tasks waits for the next.
- `HappensBefore` answers for many pairs of tasks at once whether the first has ended when the
  second one starts.

**Invariant.** The first task of a pair has ended if, and only if, a path of waits leads from the
second back to it. `turn` numbers the tasks in one order that has all waits: a pair that is not in
that order has no such path, and all others are still open.

**Proofs, the cheapest first.** A lane is a chain: of two tasks on it, the earlier has ended. Of
tasks on lanes A and B, the first has ended if some task of A from it on is a dependency of some
task of B up to the second. A table of the D dependencies, sorted by (B, A, task) with the running
maximum of what is needed of A, answers that by bisection: O(D log D) once, O(log D) for a pair.
Else the same is asked of each of the second's own dependencies: one step more. That proves all
that holds in graphs which the lowering makes.

**Search.** Open pairs are left only where a rule is broken, or in graphs of other origin. Vector
clocks (after Fidge and Mattern) of the lanes of the first tasks decide these exactly, over the
tasks between, `LANES_AT_ONCE` lanes at a time: O(tasks x lanes) time, O(tasks) memory.

**Alternative.** Clocks of all lanes for each task, built once, need no cases and no table. They are
the plainest form of these rules (`benchmarks/schedules/plain_checker.py`, against which the tests
hold the findings), but take seconds for 32,000 tasks, where this takes tenths
(`docs/performance.md`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import product

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Integers, Offsets
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.graph.wait_cycles import turns

LANES_AT_ONCE = 32
"""Columns of clocks that a search holds at once, which bound its memory."""


def replay(graph: TaskGraph) -> Integers:
    """Each task's turn in one order in which all can run; `NONE` if it never starts."""
    is_behind_itself = graph.lane == graph.peer_lane
    if (graph.dependencies.member < graph.dependent).all() and not is_behind_itself.any():
        return np.arange(len(graph), dtype=np.int32)
    return turns(graph.predecessors)


class HappensBefore:
    """The relation "has ended before another task starts", however long tasks take.

    `turn` is each task's place in one order in which all could run one by one.
    """

    def __init__(self, graph: TaskGraph, turn: Integers) -> None:
        self.graph = graph
        self.turn = turn
        self.searched = 0
        """Number of pairs that had to be searched for."""

    def __call__(self, first: Integers, second: Integers) -> Flags:
        """Mask of the pairs whose first task has ended when the second one starts."""
        ended: Flags = self.turn[first] < self.turn[second]
        open_ = np.flatnonzero(ended)
        for prove in (self._directly, self._by_a_dependency, self._by_clocks):
            open_ = open_[~prove(first[open_], second[open_])]
            if not len(open_):
                return ended
        ended[open_] = False
        return ended

    # Short proofs

    @property
    def _ends(self) -> tuple[Integers, Integers]:
        return self.graph.lane, self.graph.peer_lane

    def _directly(self, first: Integers, second: Integers) -> Flags:
        """By one dependency between their lanes, or on one lane; the first one's turn is before."""
        proven = np.zeros(len(first), dtype=bool)
        keys, latest = self._between_lanes
        for there, here in product(self._ends, self._ends):
            rest = np.flatnonzero(~proven & (there[first] != NONE) & (here[second] != NONE))
            early, late = first[rest], second[rest]
            lane, other = here[late], there[early]
            pair = self._pair(lane, other)
            at = np.searchsorted(keys, pair + late, side="right")
            # Entries of another pair of lanes are less than all of this one.
            proven[rest] = (lane == other) | (latest[at] >= pair + early)
        return proven

    def _pair(self, lane: Integers, other: Integers) -> Offsets:
        """Offset of a pair of lanes in one numbering of the tasks of all pairs."""
        return (lane.astype(np.int64) * len(self.graph.lanes) + other) * len(self.graph)

    @cached_property
    def _between_lanes(self) -> tuple[Offsets, Offsets]:
        """By (lane, other lane, task): the last on the other lane that it or one before needs.

        The second column has one entry more, in front.
        """
        task, on = self.graph.dependent, self.graph.dependencies.member
        keys, needed = [], []
        for there, here in product(self._ends, self._ends):
            both = np.flatnonzero((there[on] != NONE) & (here[task] != NONE))
            pair = self._pair(here[task[both]], there[on[both]])
            keys.append(pair + task[both])
            needed.append(pair + on[both])
        key, latest = np.concatenate(keys), np.concatenate(needed)
        in_order = np.argsort(key)
        return key[in_order], np.append(-1, np.maximum.accumulate(latest[in_order]))

    def _by_a_dependency(self, first: Integers, second: Integers) -> Flags:
        """The first is, or is proven to be before, a dependency of the second, or of its block.

        What the first task of a block waits for, those behind it on its lane wait for, too.
        """
        start, member = self.graph.dependencies
        block, lane = self.graph.block[second], self.graph.lane
        is_behind = (block != NONE) & (block < second) & (lane[block] == lane[second])
        waiting = np.where(is_behind, block, second)
        count = np.diff(start)[waiting]
        pair = np.repeat(np.arange(len(first)), count)
        begins = start[waiting] - (np.cumsum(count) - count)
        needed = member[np.repeat(begins, count) + np.arange(len(pair))]
        early = first[pair]
        met = (early == needed) | (
            (self.turn[early] < self.turn[needed]) & self._directly(early, needed)
        )
        proven = np.zeros(len(first), dtype=bool)
        proven[pair[met]] = True
        return proven

    # The search

    def _by_clocks(self, first: Integers, second: Integers) -> Flags:
        self.searched += len(first)
        proven = np.zeros(len(first), dtype=bool)
        lanes = np.unique(self.graph.lane[first])
        for begin in range(0, len(lanes), LANES_AT_ONCE):
            chosen = lanes[begin : begin + LANES_AT_ONCE]
            here = np.flatnonzero(np.isin(self.graph.lane[first], chosen))
            proven[here] = self._searched(first[here], second[here], chosen)
        return proven

    def _searched(self, first: Integers, second: Integers, lanes: Integers) -> Flags:
        """`clock[turn, lane]` is the last task of a lane that has ended after that turn's task."""
        begin, end = int(self.turn[first].min()), int(self.turn[second].max()) + 1
        column = np.full(len(self.graph.lanes), NONE, dtype=np.int32)
        column[lanes] = np.arange(len(lanes), dtype=np.int32)
        clock = np.full((end - begin, len(lanes)), NONE, dtype=np.int32)
        for row, task in zip(clock, self._in_turn[begin:end].tolist(), strict=True):
            for earlier in self.graph.predecessors.of(task).tolist():
                at = int(self.turn[earlier]) - begin
                if at >= 0:
                    np.maximum(row, clock[at], out=row)
            if (own := column[self.graph.lane[task]]) != NONE:
                row[own] = task
        return clock[self.turn[second] - begin, column[self.graph.lane[first]]] >= first

    @cached_property
    def _in_turn(self) -> Integers:
        return np.argsort(self.turn).astype(np.int32)


def waits(graph: TaskGraph, tasks: list[int]) -> Iterator[str]:
    """The reasons for which each task of a cycle cannot start before the next."""
    for task, other in zip(tasks, [*tasks[1:], *tasks[:1]], strict=True):
        if other in graph.dependencies.of(task):
            yield f"{graph.task(task)} needs {graph.task(other)}"
            continue
        ends = {int(graph.lane[task]), int(graph.peer_lane[task])} - {NONE}
        shared = min(ends & {int(graph.lane[other]), int(graph.peer_lane[other])})
        lane = graph.lanes[shared]
        yield f"{graph.task(task)} is behind {graph.task(other)} on rank {lane.rank} {lane.title}"

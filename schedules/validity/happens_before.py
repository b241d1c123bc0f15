"""What must have happened before what, by lanes, rendezvous and dependencies alone.

A task starts once it heads its lane (a transfer: both its lanes) and its
dependencies have ended. So it waits for its dependencies and for the task
before it on each of its lanes (`graph.followers`). Nothing here knows what tasks mean.

- `replay` runs all lanes in order with unbuffered sends, and says which tasks never start.
- `waits` says why each of a circle of tasks waits for the next.
- `HappensBefore` says which tasks have ended before another one starts, however long
  anything takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import product

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Integers, Offsets
from bfpp.schedules.graph import TaskGraph
from bfpp.schedules.waiting import turns

LANES_AT_ONCE = 32
"""How many columns of clocks a search holds: what bounds its memory."""


def replay(graph: TaskGraph) -> Integers:
    """Each task's turn in one order in which all can run; `NONE` if it never starts."""
    is_behind_itself = graph.lane == graph.peer_lane
    if (graph.dependencies.member < graph.dependent).all() and not is_behind_itself.any():
        return np.arange(len(graph), dtype=np.int32)
    return turns(graph.predecessors)


class HappensBefore:
    """Which tasks have ended when another one starts, in any case.

    Most answers are short. A lane is a chain; and of two tasks on lanes A and B, the first
    has ended if some task on A from it on is a dependency of some task on B up to the second:
    a sorted table of dependencies by pairs of lanes answers that for all pairs asked at
    once. Else one step through the second's own dependencies is tried. What is left is searched
    for with vector clocks (after Fidge and Mattern) of the lanes that are asked for, over the
    tasks between: exact, and in a graph that the lowering made, never needed.

    `turn` is each task's place in one order in which all could run one by one.
    """

    def __init__(self, graph: TaskGraph, turn: Integers) -> None:
        self.graph = graph
        self.turn = turn
        self.searched = 0
        """How many pairs had to be searched for."""

    def __call__(self, first: Integers, second: Integers) -> Flags:
        """Whether the first task of each pair has ended when the second one starts."""
        found: Flags = self.turn[first] < self.turn[second]
        open_ = np.flatnonzero(found)
        for prove in (self._directly, self._by_a_dependency, self._by_clocks):
            open_ = open_[~prove(first[open_], second[open_])]
            if not len(open_):
                return found
        found[open_] = False
        return found

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
            # What the table says of another pair of lanes is less than all of this one.
            proven[rest] = (lane == other) | (latest[at] >= pair + early)
        return proven

    def _pair(self, lane: Integers, other: Integers) -> Offsets:
        """Where the tasks of a pair of lanes begin in one numbering of all of them."""
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
        proven: Flags = clock[self.turn[second] - begin, column[self.graph.lane[first]]] >= first
        return proven

    @cached_property
    def _in_turn(self) -> Integers:
        return np.argsort(self.turn).astype(np.int32)


def waits(graph: TaskGraph, tasks: list[int]) -> Iterator[str]:
    """Why each task of a circle cannot start before the next of it."""
    for task, other in zip(tasks, [*tasks[1:], *tasks[:1]], strict=True):
        if other in graph.dependencies.of(task):
            yield f"{graph.task(task)} needs {graph.task(other)}"
            continue
        ends = {int(graph.lane[task]), int(graph.peer_lane[task])} - {NONE}
        shared = min(ends & {int(graph.lane[other]), int(graph.peer_lane[other])})
        lane = graph.lanes[shared]
        yield f"{graph.task(task)} is behind {graph.task(other)} on rank {lane.rank} {lane.title}"

"""Topological order of a wait graph, or a cycle in it."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from bfpp.schedules.columns import NONE, Groups, Integers, group_by

MOST_TRIED = 50
"""Members of a cycle through which shorter ones are searched for."""


def turns(before: Groups) -> Integers:
    """Topological order: the place of each after all before it, small numbers first.

    `NONE` for those on a cycle, or behind one.
    """
    size = len(before.start) - 1
    count = np.diff(before.start)
    behind = np.repeat(np.arange(size, dtype=np.int32), count)
    start, followers = (each.tolist() for each in group_by(before.member, behind, size))
    waiting = count.tolist()
    ready = np.flatnonzero(count == 0).tolist()
    heapify(ready)
    turn = [NONE] * size
    now = 0
    while ready:
        one = heappop(ready)
        turn[one] = now
        now += 1
        for other in followers[start[one] : start[one + 1]]:
            waiting[other] -= 1
            if not waiting[other]:
                heappush(ready, other)
    return np.array(turn, dtype=np.int32)


def short_cycle(before: Groups, turn: Integers) -> list[int]:
    """A cycle of those without a turn: each waits for the next, and the last for the first.

    The shortest of some near the first cycle.
    """
    path: dict[int, None] = {}
    one = int(np.argmin(turn))
    while one not in path:
        path[one] = None
        ahead = before.of(one)
        one = int(ahead[np.argmin(turn[ahead])])
    members = list(path)
    first_cycle = members[members.index(one) :]
    others = (_way_back(before, turn, each) for each in first_cycle[:MOST_TRIED])
    return min(first_cycle, *others, key=len)


def _way_back(before: Groups, turn: Integers, start: int) -> list[int]:
    """The shortest cycle through one member of a cycle, by breadth-first search."""
    came_from = {start: NONE}
    for one in (reached := [start]):  # grows
        for ahead in before.of(one).tolist():
            if ahead == start:
                way = [one]
                while (one := came_from[one]) != NONE:
                    way.append(one)
                return way[::-1]
            if turn[ahead] == NONE and ahead not in came_from:
                came_from[ahead] = one
                reached.append(ahead)
    raise AssertionError(start)

"""Whether the times of a step repeat, as a loop like those of `bfpp.sim.engines.loops.kernels`."""

from __future__ import annotations

import numpy as np


def repeats(kind, kinds, dependency_start, dependency, start, end, bounds, period, tolerance):
    """Whether all that starts within `bounds` starts and ends again a `period` later, up to them.

    And whether nothing under way in the last period, or that a task waits for in it, began before.
    """
    begin, until = bounds
    first = np.zeros(kinds + 1, dtype=np.int64)
    for task in range(len(kind)):
        first[kind[task] + 1] += 1
    for each in range(kinds):
        first[each + 1] += first[each]
    filled, by_kind = first.copy(), np.empty(len(kind), dtype=np.int64)
    for task in range(len(kind)):
        by_kind[filled[kind[task]]] = task
        filled[kind[task]] += 1
        if start[task] < begin and end[task] > until - period:
            return False
        if until - period <= start[task] < until:
            for at in range(dependency_start[task], dependency_start[task + 1]):
                if start[dependency[at]] < begin:
                    return False
    for each in range(kinds):
        at, last = first[each], first[each + 1]
        while at < last and start[by_kind[at]] < begin:
            at += 1
        after = at
        while after < last and start[by_kind[after]] < begin + period:
            after += 1
        while at < last and start[by_kind[at]] < until - period:
            if after == last:
                return False
            task, again = by_kind[at], by_kind[after]
            if abs(start[again] - start[task] - period) > tolerance:
                return False
            if abs(end[again] - end[task] - period) > tolerance:
                return False
            at, after = at + 1, after + 1
        if after < last and start[by_kind[after]] < until:
            return False
    return True

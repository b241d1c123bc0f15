"""The nearest tasks that fill or empty a buffer, around the steps that use it.

The tasks of one buffer that are on one lane are a chain: those that happen before a step are
the first few of it, and those that happen after it the last few. In a right graph there is
nothing between, and the turns show where to look: two questions for each step. Elsewhere both
ends are searched for by bisection.

All that depends on time here works in both directions: looking back from a step for what fills its
buffer, and looking ahead for what empties it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Integers, segment_starts
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.validity.findings import Places, alike, ranges
from bfpp.schedules.validity.happens_before import HappensBefore


class Uses(NamedTuple):
    """For each step, the task that fills or empties its buffer for it, or `NONE`.

    `racing` are the pairs of a step and another such task that may spoil what it uses.
    """

    step: Integers
    task: Integers
    racing: list[tuple[int, int]]


class _Chains(NamedTuple):
    """Tasks chain by chain, each chain in time; `buffer` is that of each chain."""

    task: Integers
    start: Places
    buffer: Places


def nearest(
    order: HappensBefore, step: Integers, tasks: Integers, buffer: Integers, *, ahead: bool
) -> Uses:
    """Of the tasks on each step's buffer, the first after it (`ahead`) or the last before it."""

    def before(first: Integers, second: Integers) -> Flags:
        return order(second, first) if ahead else order(first, second)

    time = -order.turn if ahead else order.turn
    of_step, chains = _chains(order.graph, step, tasks, buffer, time)
    row, chain = alike(of_step, chains.buffer)
    late, members = step[row], chains.task
    low, high = chains.start[chain], chains.start[chain + 1]
    turn = _in_time(chains, time, chain, time[late])
    begins = _end(low, turn, turn - 1, lambda at, of: before(members[at], late[of]))
    ends = _end(turn, high, turn, lambda at, of: ~before(late[of], members[at]))

    nearest_task = np.full(len(step), NONE, dtype=np.int32)
    some = np.flatnonzero(begins > low)
    latest = members[begins[some] - 1]
    in_time = np.argsort(time[latest], kind="stable")
    nearest_task[row[some[in_time]]] = latest[in_time]  # the last assignment stays
    # Of other chains than that of the nearest, the tasks that are not before it.
    of_other = some[latest != nearest_task[row[some]]]
    kept = nearest_task[row[of_other]]
    apart = begins.copy()
    apart[of_other] = _end(
        low[of_other],
        begins[of_other],
        begins[of_other] - 1,
        lambda at, of: before(members[at], kept[of]),
    )
    racing = np.repeat(late, ends - apart), members[ranges(apart, ends - apart)]
    return Uses(step, nearest_task, list(zip(*(each.tolist() for each in racing), strict=True)))


def _chains(
    graph: TaskGraph, step: Integers, tasks: Integers, buffer: Integers, time: Integers
) -> tuple[Places, _Chains]:
    """The buffer of each step, as one number over all ranks, and the chains of all buffers.

    Tasks for both copies of a unit use a buffer of that number at each.
    """
    shared = tasks[(graph.peer[tasks] != NONE) & (graph.peer[tasks] != graph.rank[tasks])]
    user = np.concatenate([step, tasks, shared])
    rank = np.concatenate([graph.rank[step], graph.rank[tasks], graph.peer[shared]])
    number = np.unique(buffer[user], return_inverse=True)[1] * graph.layout.pp + rank
    of_step, of_task, task = number[: len(step)], number[len(step) :], user[len(step) :]
    in_order = np.lexsort((time[task], graph.lane[task], of_task))
    task, of_task = task[in_order], of_task[in_order]
    start = np.flatnonzero(segment_starts(of_task, graph.lane[task]))
    return of_step, _Chains(task, np.append(start, len(task)), of_task[start])


def _in_time(chains: _Chains, time: Integers, chain: Places, when: Integers) -> Places:
    """The place of each time in its chain."""
    span = 2 * len(time)
    number = np.repeat(np.arange(len(chains.buffer)), np.diff(chains.start))
    place: Places = np.searchsorted(number * span + time[chains.task], chain * span + when)
    return np.clip(place, chains.start[chain], chains.start[chain + 1])


def _end(
    low: Places, high: Places, first_try: Places, holds: Callable[[Places, Places], Flags]
) -> Places:
    """For each row, the end of the first few places from `low` on (up to `high`) where it holds."""
    low, high, probe = low.copy(), high.copy(), first_try
    rows = np.flatnonzero(low < high)
    while len(rows):
        at = probe[rows]
        held = holds(at, rows)
        low[rows[held]] = at[held] + 1
        high[rows[~held]] = at[~held]
        rows = rows[low[rows] < high[rows]]
        probe = (low + high) // 2
    return low

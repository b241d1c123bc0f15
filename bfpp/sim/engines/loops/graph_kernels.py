"""What is asked of every graph that is simulated, as loops: as `TaskGraph` has it, sooner."""

from __future__ import annotations

import numpy as np


def followers(lane, peer_lane, lanes, start, member):
    """For each task those that wait for it: its dependents, and then the next on its lanes."""
    follows, last = np.full((len(lane), 2), -1, dtype=np.int32), np.full(lanes, -1)
    first = np.zeros(len(lane) + 1, dtype=np.int64)
    for task in range(len(lane)):
        for side in range(2):
            queue = peer_lane[task] if side else lane[task]
            if queue >= 0:
                ahead = last[queue]
                last[queue] = task
                if ahead >= 0:
                    follows[task, side] = ahead
                    first[ahead + 1] += 1
        for at in range(start[task], start[task + 1]):
            first[member[at] + 1] += 1
    for task in range(len(lane)):
        first[task + 1] += first[task]
    place, follower = first[:-1].copy(), np.empty(first[len(lane)], dtype=np.int32)
    for task in range(len(lane)):
        for at in range(start[task], start[task + 1]):
            follower[place[member[at]]] = task
            place[member[at]] += 1
    for task in range(len(lane)):
        for side in range(2):
            ahead = follows[task, side]
            if ahead >= 0:
                follower[place[ahead]] = task
                place[ahead] += 1
    return first, follower


def kinds(operation, unit, rank, peer, places, units, ranks):
    """The codes of the kinds of tasks in order, the first task of each, and the kind of each task.

    `places` are those of operations in that order. Kinds of one operation and unit are a list, in
    the order of their ranks and peers.
    """
    head = np.full(len(places) * (units + 1), -1)
    code, first, following, of_task = np.empty((4, len(operation)), dtype=np.int64)
    count = 0
    for task in range(len(operation)):
        own = np.int64(places[operation[task]]) * (units + 1) + unit[task] + 1
        number = (own * ranks + rank[task]) * (ranks + 1) + peer[task] + 1
        before, kind = -1, head[own]
        while kind >= 0 and code[kind] < number:
            before, kind = kind, following[kind]
        if kind < 0 or code[kind] != number:
            code[count], first[count], following[count] = number, task, kind
            if before < 0:
                head[own] = count
            else:
                following[before] = count
            kind = count
            count += 1
        of_task[task] = kind
    codes = np.empty(count, dtype=np.int64)
    firsts, place = np.empty((2, count), dtype=np.int32)
    at = 0
    for own in range(len(head)):
        kind = head[own]
        while kind >= 0:
            codes[at], firsts[at], place[kind] = code[kind], first[kind], at
            kind = following[kind]
            at += 1
    numbers = np.empty(len(operation), dtype=np.int32)
    for task in range(len(operation)):
        numbers[task] = place[of_task[task]]
    return codes, firsts, numbers


def flags(operation, piece, computes, backward):
    """Which tasks are compute steps, which are part of passes, and whether there are backward ones.

    By the operations that compute, and those that do so backward.
    """
    is_compute, is_pass = np.empty((2, len(operation)), dtype=np.bool_)
    trains = False
    for task in range(len(operation)):
        is_compute[task] = computes[operation[task]]
        is_pass[task] = is_compute[task] or piece[task] >= 0
        trains = trains or backward[operation[task]]
    return is_compute, is_pass, trains

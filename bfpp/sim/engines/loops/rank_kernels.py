"""When each rank computes, and how long it only communicates: as `Timeline` has it, sooner."""

from __future__ import annotations

import numpy as np


def rank_times(operation, lane, peer_lane, kinds, number, rank_of_lane, ranks, start, end):
    """The columns of `bfpp.traces.timeline.rank_times.RankTimes`.

    `kinds` has which of a `number` of kinds each operation is of, or -1: communication's, and
    compute as the last one.
    """
    first, begin, until = _intervals(
        operation, lane, peer_lane, kinds, number, rank_of_lane, ranks, start, end
    )
    most, compute = 0, number - 1
    for group in range(len(first) - 1):
        most = max(most, first[group + 1] - first[group])
    spare = np.empty((2, most))
    for group in range(len(first) - 1):
        _sort(begin, until, first[group], first[group + 1], spare)
    starts, ends, busy = np.zeros((3, ranks))
    exposed = np.zeros((compute, ranks))
    for rank in range(ranks):
        group = rank * number + compute
        low, high = first[group], first[group + 1]
        if low < high:
            high = _joined(begin, until, low, high)
            starts[rank], ends[rank] = begin[low], until[high - 1]
        for at in range(low, high):
            busy[rank] += until[at] - begin[at]
        for kind in range(compute):
            group = rank * number + kind
            exposed[kind, rank] = _exposed(
                begin, until, first[group], first[group + 1], low, high, busy[rank]
            )
    return starts, ends, busy, exposed


def _intervals(operation, lane, peer_lane, kinds, number, rank_of_lane, ranks, start, end):
    """Where each kind of each rank begins, and when its tasks start and end, lane by lane.

    The tasks of a lane follow one another, so that few of these runs are to be merged.
    """
    count = np.zeros((len(rank_of_lane), number), dtype=np.int64)
    for task in range(len(operation)):
        kind = kinds[operation[task]]
        if kind >= 0:
            count[lane[task], kind] += 1
            if peer_lane[task] >= 0:
                count[peer_lane[task], kind] += 1
    first = np.zeros(ranks * number + 1, dtype=np.int64)
    for queue in range(len(count)):
        for kind in range(number):
            first[rank_of_lane[queue] * number + kind + 1] += count[queue, kind]
    for group in range(ranks * number):
        first[group + 1] += first[group]
    place, free = np.empty_like(count), first.copy()
    for queue in range(len(count)):
        for kind in range(number):
            group = rank_of_lane[queue] * number + kind
            place[queue, kind] = free[group]
            free[group] += count[queue, kind]
    begin, until = np.empty((2, first[ranks * number]))
    for task in range(len(operation)):
        kind = kinds[operation[task]]
        if kind >= 0:
            at = place[lane[task], kind]
            begin[at], until[at] = start[task], end[task]
            place[lane[task], kind] += 1
            if peer_lane[task] >= 0:
                at = place[peer_lane[task], kind]
                begin[at], until[at] = start[task], end[task]
                place[peer_lane[task], kind] += 1
    return first, begin, until


def _sort(begin, until, low, high, spare):
    """Put intervals in the order of their begin: merges the runs that are in order, in pairs.

    A run goes on unless the next one begins earlier, so that NaN, which is not earlier than
    anything, ends none: each merge makes one run of two, whatever the times are.
    """
    merges = True
    while merges:
        merges, first = False, low
        while first < high:
            middle = first + 1
            while middle < high and not begin[middle] < begin[middle - 1]:
                middle += 1
            last = min(middle + 1, high)
            while last < high and not begin[last] < begin[last - 1]:
                last += 1
            if middle < last:
                merges = True
                ahead = middle - first
                for at in range(ahead):
                    spare[0, at], spare[1, at] = begin[first + at], until[first + at]
                at, other = 0, middle
                while at < ahead:
                    to = first + at + other - middle
                    if other < last and begin[other] < spare[0, at]:
                        begin[to], until[to] = begin[other], until[other]
                        other += 1
                    else:
                        begin[to], until[to] = spare[0, at], spare[1, at]
                        at += 1
            first = last


def _joined(begin, until, low, high):
    """Make stretches of intervals in order, those that meet one; the end of their list."""
    last = low
    for at in range(low + 1, high):
        if begin[at] > until[last]:
            last += 1
            begin[last], until[last] = begin[at], until[at]
        else:
            until[last] = max(until[last], until[at])
    return last + 1


def _exposed(begin, until, first, last, low, high, busy):
    """Seconds covered by sorted intervals, but not by the stretches from `low` to `high`.

    That is what both cover together, less the `busy` seconds of the stretches, summed in the same
    order as by numpy: the result is the same to the last bit.
    """
    if first == last:
        return 0.0
    seconds, since, reached = 0.0, 0.0, 0.0
    at, stretch, covers = first, low, False
    while at < last or stretch < high:
        if at == last or (stretch < high and begin[stretch] <= begin[at]):
            number = stretch
            stretch += 1
        else:
            number = at
            at += 1
        if covers and not begin[number] > reached:
            reached = max(reached, until[number])
            continue
        if covers:
            seconds += reached - since
        since, reached, covers = begin[number], until[number], True
    return seconds + (reached - since) - busy

"""The loops that replay and move the passes of words, over arrays, as numba compiles them.

A pass is a number, `kind * stages + stage`, of kinds forward (0), backward or its input half (1)
and weight half (2). A rank's *word* holds its passes in order; the micro-batches of each are
first come, first served, so that a word says all of an order. By pass there are its `rank`, the
pass `after` it that takes its output, or -1, its `seconds`, and its `arrival`: how long after its
end the output is there. `size` is what a stage keeps of a micro-batch from the
start of its forward pass to the end of its last backward one, and `limit` the most that a rank may
keep; after its last pass it is busy for `rest` more. The stages of rank r are those of `stage` from
`first[r]` on.

Whatever is sent from rank to rank in one direction is sent one after the other: `channel` numbers
the `channels` that passes send on, -1 where nothing is sent.

How long words take is until no rank is busy any more; or, of `spans`, the longest time from a
rank's begin, when it can receive what its first pass needs, until it is not.
"""

from __future__ import annotations

from math import exp, inf
from typing import NamedTuple

import numpy as np

from bfpp.sim.engines.loops.machine_code import machine_code

compiled = machine_code(nogil=True, error_model="numpy")
"""What is divided by is never 0: checks for it would be as much code again."""

RANK, DATA = 0, 1
"""What a pass starts after: the one before it on its rank, or what it needs."""


class Arrays(NamedTuple):
    """A problem, as the loops take it."""

    rank: np.ndarray
    after: np.ndarray
    seconds: np.ndarray
    arrival: np.ndarray
    channel: np.ndarray
    size: np.ndarray
    limit: np.ndarray
    rest: np.ndarray
    stage: np.ndarray
    first: np.ndarray
    channels: int
    microbatches: int
    kinds: int
    spans: bool


class Run(NamedTuple):
    """Words as they run: by rank and place, when passes start, after what, of which micro-batch.

    By pass and micro-batch: its place in its rank's word, and when it has what it needs.
    """

    start: np.ndarray
    bound: np.ndarray
    turn: np.ndarray
    place: np.ndarray
    arrived: np.ndarray


@compiled
def hand_on(problem, code, microbatch, end, sent, arrived):
    """Send the output of a pass that ends; returns the pass that takes it, or -1.

    `sent` holds when each channel is free, `arrived` when each pass has what it needs.
    """
    after = problem.after[code]
    if after >= 0:
        lane = problem.channel[code]
        if lane >= 0:
            sent[lane] = max(sent[lane], end) + problem.arrival[code]
            end = sent[lane]
        arrived[after, microbatch] = end
    return after


@compiled
def begin_of(problem, code, start):
    """When a rank begins whose first pass is this and starts then: in time to receive for it."""
    return start - problem.arrival[code - 1] if code else start


@compiled
def taken(problem, here, begun, end):
    """How long a rank takes that begins then and whose last pass ends then."""
    end += problem.rest[here]
    return end - begun if problem.spans else end


@compiled
def is_within(problem, word, length, here):
    """Whether a rank's word keeps to its limit."""
    stages = len(problem.size)
    last = (problem.kinds - 1) * stages
    kept = 0.0
    for at in range(length):
        code = word[at]
        if code < stages:
            kept += problem.size[code]
            if kept > problem.limit[here]:
                return False
        elif code >= last:
            kept -= problem.size[code - last]
    return True


@compiled
def replay(problem, words, lengths, old, here, first, new):
    """Fill a run of the words, and return how long they take, infinite where they cannot run.

    They are those of the `old` run but for a rank's passes from its `first` on: what starts before
    these could start is as it was.
    """
    stages, ranks = len(problem.size), len(problem.limit)
    codes = problem.kinds * stages
    done = np.zeros(codes, dtype=np.int64)
    came = np.zeros(codes, dtype=np.int64)
    sent = np.zeros(problem.channels)
    free = np.zeros(ranks)
    at = np.zeros(ranks, dtype=np.int64)
    waiting = np.ones(ranks, dtype=np.bool_)
    since = 0.0
    if first:
        since = old.start[here, first - 1] + problem.seconds[words[here, first - 1]]
    left = 0
    for each in range(ranks):
        place = 0
        while place < (first if each == here else lengths[each]):
            begin = old.start[each, place]
            if begin >= since and each != here:
                break
            code = words[each, place]
            microbatch = done[code]
            new.start[each, place] = begin
            new.bound[each, place] = old.bound[each, place]
            new.turn[each, place] = microbatch
            new.place[code, microbatch] = place
            done[code] += 1
            free[each] = begin + problem.seconds[code]
            after = problem.after[code]
            if after >= 0:
                arrived = old.arrived[after, microbatch]
                new.arrived[after, microbatch] = arrived
                came[after] += 1
                lane = problem.channel[code]
                if lane >= 0:
                    sent[lane] = max(sent[lane], arrived)
            place += 1
        at[each] = place
        left += lengths[each] - place
    moved = True
    while moved:
        moved = False
        for each in range(ranks):
            if not waiting[each]:
                continue
            waiting[each] = False
            place = at[each]
            while place < lengths[each]:
                code = words[each, place]
                microbatch = done[code]
                if code >= stages and microbatch >= done[code - stages]:
                    return inf
                begin = free[each]
                new.bound[each, place] = RANK
                if 0 < code < 2 * stages:
                    if came[code] <= microbatch:
                        break
                    if new.arrived[code, microbatch] > begin:
                        begin = new.arrived[code, microbatch]
                        new.bound[each, place] = DATA
                new.start[each, place] = begin
                new.turn[each, place] = microbatch
                new.place[code, microbatch] = place
                free[each] = begin + problem.seconds[code]
                done[code] += 1
                place += 1
                left -= 1
                moved = True
                after = hand_on(problem, code, microbatch, free[each], sent, new.arrived)
                if after >= 0:
                    came[after] += 1
                    waiting[problem.rank[after]] = True
            at[each] = place
    if left:
        return inf
    longest = 0.0
    for each in range(ranks):
        begun = begin_of(problem, words[each, 0], new.start[each, 0])
        longest = max(longest, taken(problem, each, begun, free[each]))
    return longest


@compiled
def last_rank(problem, words, lengths, start):
    """The rank that is busy last, or whose span is the longest."""
    latest, found = -1.0, 0
    for here in range(len(problem.limit)):
        last = lengths[here] - 1
        end = start[here, last] + problem.seconds[words[here, last]]
        begun = begin_of(problem, words[here, 0], start[here, 0])
        span = taken(problem, here, begun, end)
        if span > latest:
            latest, found = span, here
    return found


@compiled
def critical(problem, words, lengths, run, path):
    """The critical path, from its end: (rank, place) of passes that wait for their own rank.

    Returns how many there are.
    """
    stages = len(problem.size)
    here = last_rank(problem, words, lengths, run.start)
    at = lengths[here] - 1
    count = 0
    while at >= 0:
        if run.bound[here, at] == RANK:
            path[count, 0], path[count, 1] = here, at
            count += 1
            at -= 1
            continue
        code, microbatch = words[here, at], run.turn[here, at]
        if code < stages:
            code -= 1
        elif code + 1 < 2 * stages:
            code += 1
        else:
            code -= stages
        here = problem.rank[code]
        at = run.place[code, microbatch]
    return count


@compiled
def copy(words, into):
    """Element by element: numba takes seconds to compile an assignment to a slice."""
    for row in range(words.shape[0]):
        for at in range(words.shape[1]):
            into[row, at] = words[row, at]


@compiled
def move(word, at, to):
    """Take the pass at one place of a word to another."""
    code = word[at]
    step = 1 if to > at else -1
    for each in range(at, to, step):
        word[each] = word[each + step]
    word[to] = code


@compiled
def anneal(problem, words, lengths, now, run, other, steps, hot, cold, seed):
    """Move passes of the critical path along their ranks' words; leaves the best words there.

    They take `now` seconds, as the `run` says; the `other` is there to be filled. What is slower
    is kept with a chance that falls with the temperature, in seconds, from `hot` to `cold`.
    Returns how long the best words take.
    """
    np.random.seed(seed)
    best, best_words = now, words.copy()
    path = np.empty((words.size, 2), dtype=np.int64)
    count = -1
    for step in range(steps):
        if count < 0:
            count = critical(problem, words, lengths, run, path)
        if count == 0:
            break
        here, at = path[np.random.randint(count)]
        far = 1 + int(np.random.exponential(3.0))
        if np.random.random() < 0.5:
            to = at - far
        else:
            # What runs just before it goes behind it, or further.
            at -= 1
            to = at + far
        word = words[here]
        if at < 0 or to < 0 or to >= lengths[here] or word[at] == word[to]:
            continue
        move(word, at, to)
        found = inf
        if is_within(problem, word, lengths[here], here):
            found = replay(problem, words, lengths, run, here, min(at, to), other)
        heat = hot * (cold / hot) ** (step / steps)
        if found <= now or (found < inf and np.random.random() < exp((now - found) / heat)):
            now, run, other, count = found, other, run, -1
            if now < best:
                best = now
                copy(words, best_words)
        else:
            move(word, to, at)
    copy(best_words, words)
    return best

"""The loops of the synthesis, over arrays, as numba compiles them.

A pass is a number, `kind * stages + stage`, of kinds forward (0), backward or its input half (1)
and weight half (2). A rank's *word* holds its passes in order; the micro-batches of each are
first come, first served, so that a word says all of an order. By pass there are its `rank`, the
pass `after` it that needs what it hands on, or -1, its `seconds`, and its `arrival`: how much later
what it hands on is where it is needed. `size` is what a stage keeps of a micro-batch from the
start of its forward pass to the end of its last backward one, and `limit` the most that a rank may
keep. The stages of rank r are those of `stage` from `first[r]` on.

Whatever is sent from rank to rank in one direction is sent one after the other: `channel` numbers
the `channels` that passes send on, -1 where nothing is sent.

How long words take is when their last pass ends; or, of `spans`, the longest time from a rank's
begin, when it can receive what its first pass needs, to the end of its last.
"""

from __future__ import annotations

from math import exp, inf
from typing import NamedTuple

import numpy as np
from numba import njit

compiled = njit(cache=True, nogil=True, error_model="numpy")
"""What is divided by is never 0: checks for it would be as much code again."""

RANK, DATA = 0, 1
"""What a pass starts after: the one before it on its rank, or what it needs."""

PACES = 2
"""Numbers of a dispatch that say when the next forward pass of the first stage may start."""


class Arrays(NamedTuple):
    """A problem, as the loops take it."""

    rank: np.ndarray
    after: np.ndarray
    seconds: np.ndarray
    arrival: np.ndarray
    channel: np.ndarray
    size: np.ndarray
    limit: np.ndarray
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
    """Send what a pass that ends hands on; the pass that needs it, or -1.

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
def taken(problem, begun, end):
    """How long a rank takes that begins then and whose last pass ends then."""
    return end - begun if problem.spans else end


@compiled
def dispatch(problem, rule, words):
    """Fill the words: each rank in turn runs the pass of the least start, times patience, less key.

    The `rule` holds the key of each pass; the patience of each rank; what each stage's forward
    pass leaves free of its rank's limit; and how long after one forward pass of the first stage
    the next may start, and how long after its rank last had more room. Returns how long the words
    take, infinite where passes wait for room for ever.
    """
    stages, ranks, kinds = len(problem.size), len(problem.limit), problem.kinds
    codes, last = kinds * stages, (kinds - 1) * stages
    keys, patience = rule[:codes], rule[codes : codes + ranks]
    room, pace = rule[codes + ranks : -PACES], rule[-PACES:]
    done = np.zeros(codes, dtype=np.int64)
    arrived = np.full((codes, problem.microbatches), inf)
    sent = np.zeros(problem.channels)
    free, kept, begun = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks)
    placed = np.zeros(ranks, dtype=np.int64)
    choice = np.full(ranks, -1, dtype=np.int64)
    begin = np.full(ranks, inf)
    stale = np.ones(ranks, dtype=np.bool_)
    paced = 0.0
    for _ in range(codes * problem.microbatches):
        first = 0
        for here in range(ranks):
            if stale[here]:
                stale[here] = False
                best, choice[here], begin[here] = inf, -1, inf
                for at in range(problem.first[here], problem.first[here + 1]):
                    stage = problem.stage[at]
                    for code in range(stage, codes, stages):
                        microbatch = done[code]
                        if microbatch == problem.microbatches:
                            continue
                        ready = 0.0
                        if code < stages:
                            more = problem.size[stage] + room[stage]
                            if kept[here] + more > problem.limit[here]:
                                continue
                            ready = arrived[code, microbatch] if code else paced
                        elif microbatch >= done[code - stages]:
                            continue
                        elif code < 2 * stages:
                            ready = arrived[code, microbatch]
                        if ready == inf:
                            continue
                        start = max(free[here], ready)
                        value = start * patience[here] - keys[code]
                        if value < best:
                            best, choice[here], begin[here] = value, code, start
            if begin[here] < begin[first]:
                first = here
        code = choice[first]
        if code < 0:
            return inf
        microbatch = done[code]
        end = begin[first] + problem.seconds[code]
        free[first] = end
        if not placed[first]:
            begun[first] = begin_of(problem, code, begin[first])
        words[first, placed[first]] = code
        placed[first] += 1
        done[code] += 1
        if code < stages:
            kept[first] += problem.size[code]
            if code == 0:
                paced = max(paced, begin[first] + pace[0])
        elif code >= last:
            kept[first] -= problem.size[code - last]
            if first == problem.rank[0]:
                paced = max(paced, end + pace[1])
        stale[first] = True
        after = hand_on(problem, code, microbatch, end, sent, arrived)
        if after >= 0:
            stale[problem.rank[after]] = True
    longest = 0.0
    for here in range(ranks):
        longest = max(longest, taken(problem, begun[here], free[here]))
    return longest


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
        longest = max(longest, taken(problem, begun, free[each]))
    return longest


@compiled
def last_rank(problem, words, lengths, start):
    """The rank whose last pass ends last, or whose span is the longest."""
    latest, found = -1.0, 0
    for here in range(len(problem.limit)):
        last = lengths[here] - 1
        end = start[here, last] + problem.seconds[words[here, last]]
        span = taken(problem, begin_of(problem, words[here, 0], start[here, 0]), end)
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


@compiled
def vary(problem, rule, scale):
    """Change a few numbers of a dispatch; `scale` is a typical time of a pass."""
    stages, ranks = len(problem.size), len(problem.limit)
    codes = problem.kinds * stages
    room, pace = codes + ranks, codes + ranks + stages
    for _ in range(1 + np.random.randint(3)):
        what = np.random.random()
        step = np.random.normal() * scale * 2.0 ** (2 * np.random.random() - 2)
        if what < 0.35:
            rule[np.random.randint(codes)] += step
        elif what < 0.6:
            # One kind along all stages: more at one end than at the other, or alike.
            first = np.random.randint(problem.kinds) * stages
            slope = step * np.random.randint(2) / stages
            for stage in range(stages):
                rule[first + stage] += step - slope * stage
        elif what < 0.75:
            factor = exp(0.5 * np.random.normal())
            one = np.random.randint(2 * ranks)
            for here in range(ranks):
                if one == here or one >= ranks:
                    rule[codes + here] *= factor
        elif what < 0.9:
            stage = np.random.randint(stages)
            change = problem.size[stage] * (np.random.randint(3) - 1)
            other = np.random.randint(stages) if np.random.random() < 0.5 else stage
            for each in range(min(stage, other), max(stage, other) + 1):
                rule[room + each] = max(0.0, rule[room + each] + change)
        else:
            each = pace + np.random.randint(2)
            rule[each] = max(0.0, rule[each] + step)


@compiled
def choose(problem, rule, tries, scale, seed, words):
    """Vary the numbers of the dispatch; leaves the best of them, and the words, there.

    Returns how long the best words take.
    """
    np.random.seed(seed)
    trial = words.copy()
    best, known = inf, rule
    for each in range(tries + 1):
        new = known.copy()
        if each:
            vary(problem, new, scale)
        found = dispatch(problem, new, trial)
        if found <= best:
            if found < best:
                copy(trial, words)
            best, known = found, new
    for each in range(len(rule)):
        rule[each] = known[each]
    return best

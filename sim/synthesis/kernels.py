"""The loops of the synthesis, over arrays, as numba compiles them.

A pass is a number, `kind * stages + stage`, of kinds forward (0), backward or its input half (1)
and weight half (2). A rank's *word* holds its passes in order; the micro-batches of each are
first come, first served, so that a word says all of an order. `seconds` and `arrival` are by
pass: how long it takes, and how much later what it hands on is where it is needed. A pass runs
on `rank[stage]`. `size` is what a stage keeps of a micro-batch from the start of its forward pass
to the end of its last backward one, and `limit` the most that a rank may keep.

Whatever is sent from rank to rank in one direction is sent one after the other: `channel` numbers
the channels that passes send on, -1 where nothing is sent.

How long words take is when their last pass ends; or, of `spans`, the longest time from a rank's
begin, when it can receive what its first pass needs, to the end of its last.
"""

from __future__ import annotations

from math import exp, inf
from typing import NamedTuple

import numpy as np
from numba import njit

RANK, DATA = 0, 1


class Arrays(NamedTuple):
    """A problem, as the loops take it."""

    rank: np.ndarray
    seconds: np.ndarray
    arrival: np.ndarray
    channel: np.ndarray
    size: np.ndarray
    limit: np.ndarray
    microbatches: int
    kinds: int
    spans: bool


@njit(cache=True, nogil=True)
def next_of(code, stages):
    """The pass that needs what this one hands on, or -1."""
    kind, stage = code // stages, code % stages
    if kind == 0:
        return stage + 1 if stage + 1 < stages else stages + stage
    if kind == 1 and stage > 0:
        return stages + stage - 1
    return -1


@njit(cache=True, nogil=True)
def hand_on(problem, code, microbatch, end, sent, arrived):
    """Send what a pass that ends hands on; the stage that needs it, or -1.

    `sent` holds when each channel is free, `arrived` when each pass has what it needs.
    """
    stages = len(problem.rank)
    after = next_of(code, stages)
    if after < 0:
        return -1
    lane = problem.channel[code]
    if lane >= 0:
        sent[lane] = max(sent[lane], end) + problem.arrival[code]
        end = sent[lane]
    arrived[after, microbatch] = end
    return after % stages


@njit(cache=True, nogil=True)
def begin_of(problem, code, start):
    """When a rank begins whose first pass is this and starts then: in time to receive for it."""
    return start - problem.arrival[code - 1] if code else start


@njit(cache=True, nogil=True)
def taken(problem, begins, free):
    """How long ranks take that begin then and whose last passes end then."""
    return (free - begins).max() if problem.spans else free.max()


@njit(cache=True, nogil=True)
def dispatch(problem, keys, patience, room, words):
    """Fill the words: each rank in turn runs the pass of the least start, times patience, less key.

    `room` is what each stage's forward pass leaves free of its rank's limit. Returns how long the
    words take, infinite where passes wait for room for ever.
    """
    rank, seconds, channel, size, limit, microbatches, kinds = (
        problem.rank,
        problem.seconds,
        problem.channel,
        problem.size,
        problem.limit,
        problem.microbatches,
        problem.kinds,
    )
    stages, ranks = len(rank), len(limit)
    codes = kinds * stages
    done = np.zeros(codes, dtype=np.int64)
    arrived = np.full((codes, microbatches), inf)
    arrived[0] = 0.0
    sent = np.zeros(channel.max() + 2)
    free, kept = np.zeros(ranks), np.zeros(ranks)
    placed = np.zeros(ranks, dtype=np.int64)
    choice = np.full(ranks, -1, dtype=np.int64)
    begin = np.full(ranks, inf)
    begins = np.zeros(ranks)
    stale = np.ones(ranks, dtype=np.bool_)
    for _ in range(codes * microbatches):
        for each in range(ranks):
            if stale[each]:
                choice[each], begin[each] = -1, inf
        best = np.full(ranks, inf)
        for code in range(codes):
            kind, stage = code // stages, code % stages
            here = rank[stage]
            if not stale[here]:
                continue
            microbatch = done[code]
            if microbatch == microbatches:
                continue
            if kind == 0:
                if kept[here] + size[stage] + room[stage] > limit[here]:
                    continue
            elif microbatch >= done[code - stages]:
                continue
            ready = arrived[code, microbatch] if kind < 2 else 0.0
            if ready == inf:
                continue
            start = max(free[here], ready)
            value = start * patience[here] - keys[code]
            if value < best[here]:
                best[here], choice[here], begin[here] = value, code, start
        first = 0
        for each in range(ranks):
            stale[each] = False
            if begin[each] < begin[first]:
                first = each
        code = choice[first]
        if code < 0:
            return inf
        kind, stage, microbatch = code // stages, code % stages, done[code]
        end = begin[first] + seconds[code]
        free[first] = end
        if not placed[first]:
            begins[first] = begin_of(problem, code, begin[first])
        words[first, placed[first]] = code
        placed[first] += 1
        done[code] += 1
        if kind == 0:
            kept[first] += size[stage]
        elif kind == kinds - 1:
            kept[first] -= size[stage]
        stale[first] = True
        receiver = hand_on(problem, code, microbatch, end, sent, arrived)
        if receiver >= 0:
            stale[rank[receiver]] = True
    return taken(problem, begins, free)


@njit(cache=True, nogil=True)
def is_within(problem, word, length, here):
    """Whether a rank's word keeps to its limit."""
    rank, size, limit, kinds = problem.rank, problem.size, problem.limit, problem.kinds
    stages = len(rank)
    kept = 0.0
    for at in range(length):
        kind, stage = word[at] // stages, word[at] % stages
        if kind == 0:
            kept += size[stage]
            if kept > limit[here]:
                return False
        elif kind == kinds - 1:
            kept -= size[stage]
    return True


@njit(cache=True, nogil=True)
def replay(problem, words, lengths, start, bound, place):
    """When each pass of the words starts; returns how long they take, infinite if they cannot run.

    `bound` says by what a start is: the pass before it on its rank (`RANK`), or what it needs
    (`DATA`); `place` holds where each pass of a micro-batch is in its rank's word.
    """
    rank, seconds, channel, limit, microbatches, kinds = (
        problem.rank,
        problem.seconds,
        problem.channel,
        problem.limit,
        problem.microbatches,
        problem.kinds,
    )
    stages, ranks = len(rank), len(limit)
    codes = kinds * stages
    done = np.zeros(codes, dtype=np.int64)
    arrived = np.full((codes, microbatches), inf)
    arrived[0] = 0.0
    sent = np.zeros(channel.max() + 2)
    free = np.zeros(ranks)
    at = np.zeros(ranks, dtype=np.int64)
    waiting = np.ones(ranks, dtype=np.bool_)
    left = lengths.sum()
    moved = True
    while moved:
        moved = False
        for here in range(ranks):
            if not waiting[here]:
                continue
            waiting[here] = False
            while at[here] < lengths[here]:
                code = words[here, at[here]]
                kind, microbatch = code // stages, done[code]
                if kind and microbatch >= done[code - stages]:
                    return inf
                ready = arrived[code, microbatch] if kind < 2 else 0.0
                if ready == inf:
                    break
                begin = free[here]
                bound[here, at[here]] = RANK
                if ready > begin:
                    begin = ready
                    bound[here, at[here]] = DATA
                start[here, at[here]] = begin
                place[code, microbatch] = at[here]
                end = begin + seconds[code]
                free[here] = end
                done[code] += 1
                at[here] += 1
                left -= 1
                moved = True
                receiver = hand_on(problem, code, microbatch, end, sent, arrived)
                if receiver >= 0:
                    waiting[rank[receiver]] = True
    if left:
        return inf
    begins = np.zeros(ranks)
    for here in range(ranks):
        begins[here] = begin_of(problem, words[here, 0], start[here, 0])
    return taken(problem, begins, free)


@njit(cache=True, nogil=True)
def last_rank(problem, words, lengths, start):
    """The rank whose last pass ends last, or whose span is the longest."""
    seconds, limit = problem.seconds, problem.limit
    latest, found = -1.0, 0
    for here in range(len(limit)):
        end = start[here, lengths[here] - 1] + seconds[words[here, lengths[here] - 1]]
        if problem.spans:
            end -= begin_of(problem, words[here, 0], start[here, 0])
        if end > latest:
            latest, found = end, here
    return found


@njit(cache=True, nogil=True)
def critical(problem, words, lengths, start, bound, place, path):
    """The critical path, from its end: (rank, place) of passes that wait for their own rank.

    Returns how many there are.
    """
    rank = problem.rank
    stages = len(rank)
    here = last_rank(problem, words, lengths, start)
    at = lengths[here] - 1
    count = 0
    while at >= 0:
        if bound[here, at] == RANK:
            path[count, 0], path[count, 1] = here, at
            count += 1
            at -= 1
            continue
        code = words[here, at]
        microbatch = 0
        while place[code, microbatch] != at:
            microbatch += 1
        kind, stage = code // stages, code % stages
        if kind == 0:
            code -= 1
        elif stage + 1 < stages:
            code += 1
        else:
            code -= stages
        here = rank[code % stages]
        at = place[code, microbatch]
    return count


@njit(cache=True, nogil=True)
def anneal(problem, words, lengths, steps, hot, cold, seed):
    """Move passes of the critical path along their ranks' words; leaves the best words there.

    What is slower is kept with a chance that falls with the temperature, in seconds, from `hot`
    to `cold`. Returns how long the best words take.
    """
    rank, limit, microbatches, kinds = (
        problem.rank,
        problem.limit,
        problem.microbatches,
        problem.kinds,
    )
    stages, ranks, longest = len(rank), len(limit), words.shape[1]
    np.random.seed(seed)
    start = np.zeros((ranks, longest))
    bound = np.zeros((ranks, longest), dtype=np.int8)
    place = np.zeros((kinds * stages, microbatches), dtype=np.int64)
    path = np.zeros((ranks * longest, 2), dtype=np.int64)
    now = replay(problem, words, lengths, start, bound, place)
    count = critical(problem, words, lengths, start, bound, place, path)
    best, kept = now, words.copy()
    kept_word = np.empty(longest, dtype=words.dtype)
    for step in range(steps):
        heat = hot * (cold / hot) ** (step / steps)
        if count == 0:
            break
        here, at = path[np.random.randint(count)]
        word = words[here]
        far = 1 + int(np.random.exponential(3.0))
        if np.random.random() < 0.5:
            to = at - far
        else:
            # What runs just before it goes behind it, or further.
            at -= 1
            to = at + far
        if at < 0 or to < 0 or to >= lengths[here] or word[at] == word[to]:
            continue
        kept_word[:] = word
        code = word[at]
        if to < at:
            for each in range(at, to, -1):
                word[each] = word[each - 1]
        else:
            for each in range(at, to):
                word[each] = word[each + 1]
        word[to] = code
        found = inf
        if is_within(problem, word, lengths[here], here):
            found = replay(problem, words, lengths, start, bound, place)
        if found <= now or (found < inf and np.random.random() < exp((now - found) / heat)):
            now = found
            count = critical(problem, words, lengths, start, bound, place, path)
            if now < best:
                best = now
                kept[:] = words
        else:
            word[:] = kept_word
    words[:] = kept
    return best


@njit(cache=True, nogil=True)
def choose(problem, keys, patience, room, tries, scale, seed, words):
    """Vary the keys of the dispatch; leaves the best keys, patience, room and words there.

    `scale` is a typical time of a pass. Returns how long the best words take.
    """
    rank, size, limit, kinds = problem.rank, problem.size, problem.limit, problem.kinds
    stages, ranks = len(rank), len(limit)
    np.random.seed(seed)
    trial = words.copy()
    best = dispatch(problem, keys, patience, room, words)
    for _ in range(tries):
        new_keys, new_patience, new_room = keys.copy(), patience.copy(), room.copy()
        for _ in range(1 + np.random.randint(3)):
            what = np.random.random()
            step = np.random.normal() * scale * 2.0 ** (2 * np.random.random() - 2)
            if what < 0.35:
                new_keys[np.random.randint(kinds * stages)] += step
            elif what < 0.65:
                # One kind along all stages: more at one end than at the other, or alike.
                first = np.random.randint(kinds) * stages
                slope = step * np.random.randint(2) / stages
                for stage in range(stages):
                    new_keys[first + stage] += step - slope * stage
            elif what < 0.8:
                factor = exp(0.5 * np.random.normal())
                if np.random.random() < 0.5:
                    new_patience *= factor
                else:
                    new_patience[np.random.randint(ranks)] *= factor
            else:
                stage = np.random.randint(stages)
                change = size[stage] * (np.random.randint(3) - 1)
                if np.random.random() < 0.5:
                    new_room[stage] = max(0.0, new_room[stage] + change)
                else:
                    other = np.random.randint(stages)
                    for each in range(min(stage, other), max(stage, other) + 1):
                        new_room[each] = max(0.0, new_room[each] + change)
        found = dispatch(problem, new_keys, new_patience, new_room, trial)
        if found <= best:
            if found < best:
                words[:] = trial
            best = found
            keys[:], patience[:], room[:] = new_keys, new_patience, new_room
    return best

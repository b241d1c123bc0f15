"""The loops that dispatch passes: ranks take the next one by a rule in numbers, which is varied."""

from __future__ import annotations

from math import exp, inf

import numpy as np

from bfpp.sim.synthesis.loops.kernels import begin_of, compiled, copy, hand_on, taken

PACES = 2
"""Numbers of a dispatch that say when the next forward pass of the first stage may start."""


@compiled
def ready_of(problem, room, code, done, kept, arrived, paced):
    """When the next micro-batch of a pass may start, infinite where that is not known yet.

    The first stage waits until it is `paced`; a forward pass leaves its `room` of the limit free.
    """
    stages, microbatch = len(problem.size), done[code]
    if microbatch == problem.microbatches:
        return inf
    if code < stages:
        here = problem.rank[code]
        if kept[here] + (problem.size[code] + room[code]) > problem.limit[here]:
            return inf
        return arrived[code, microbatch] if code else paced
    if microbatch >= done[code - stages]:
        return inf
    return arrived[code, microbatch] if code < 2 * stages else 0.0


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
                        ready = ready_of(problem, room, code, done, kept, arrived, paced)
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
        longest = max(longest, taken(problem, here, begun[here], free[here]))
    return longest


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

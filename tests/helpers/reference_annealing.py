"""Words of passes, replayed and annealed in plain Python: the reference of the core's annealing.

A replay sorts the graph of all passes; annealing replays all of them after every move.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from itertools import accumulate
from math import exp, inf
from typing import NamedTuple

import numpy as np

from bfpp.core.synthesis.ordering_problem import ProblemArrays

Words = list[list[int]]
Place = tuple[int, int]
"""A rank, and a place in its word."""


class Replayed(NamedTuple):
    """The step time of words, and the times when ranks are free again.

    By place: when its pass starts, the place whose data it awaits, and when its output has arrived.
    """

    seconds: float
    free: list[float]
    start: dict[Place, float]
    awaited: dict[Place, Place | None]
    arrival: dict[Place, float]


NEVER = Replayed(inf, [], {}, {}, {})


def needed_by(problem: ProblemArrays, code: int) -> int | None:
    """The pass whose output this one needs."""
    if code < problem.stages:
        return code - 1 if code else None
    if code >= 2 * problem.stages:
        return None
    return code + 1 if code + 1 < 2 * problem.stages else problem.stages - 1


def replay(problem: ProblemArrays, words: Words) -> Replayed:
    """Start each pass as soon as its rank is free and it has what it needs."""
    passes, place_of = {}, {}
    for rank, word in enumerate(words):
        for at, code in enumerate(word):
            passes[rank, at] = code, word[:at].count(code)
            place_of[passes[rank, at]] = rank, at
    source, graph = {}, {}
    for (rank, at), (code, microbatch) in passes.items():
        before = needed_by(problem, code)
        source[rank, at] = None if before is None else place_of[before, microbatch]
        halves = code - problem.stages, microbatch
        waits_for = {source[rank, at], place_of.get(halves), (rank, at - 1) if at else None}
        graph[rank, at] = waits_for - {None}
    try:
        order = [*TopologicalSorter(graph).static_order()]
    except CycleError:
        return NEVER

    start, awaited, arrival, sent = {}, {}, {}, {}
    free = [0.0] * len(words)
    for place in order:
        (rank, _), (code, _) = place, passes[place]
        data = 0.0 if source[place] is None else arrival[source[place]]
        awaited[place] = source[place] if data > free[rank] else None
        start[place] = max(free[rank], data)
        free[rank] = arrival[place] = start[place] + problem.seconds[code]
        channel = problem.channel[code] if code < 2 * problem.stages else -1
        if channel >= 0:
            begin = max(sent.get(channel, 0.0), free[rank])
            sent[channel] = arrival[place] = begin + problem.transfer[code]
    taken = [
        busy(problem, word, start, *each) for word, each in zip(words, enumerate(free), strict=True)
    ]
    return Replayed(max(taken), free, start, awaited, arrival)


def busy(
    problem: ProblemArrays, word: list[int], start: dict[Place, float], rank: int, end: float
) -> float:
    """The busy time of a rank whose last pass ends then: its span, or since the step began."""
    end += problem.rest[rank]
    if not problem.spans or not word:
        return end
    first = word[0]
    return end - (start[rank, 0] - problem.transfer[first - 1] if first else start[rank, 0])


def critical(problem: ProblemArrays, words: Words, now: Replayed) -> list[Place]:
    """The passes of the critical path that wait for their own rank, from its end."""
    taken = [
        busy(problem, word, now.start, *each)
        for word, each in zip(words, enumerate(now.free), strict=True)
    ]
    rank = taken.index(max(taken))
    path, at = [], len(words[rank]) - 1
    while at >= 0:
        if awaited := now.awaited[rank, at]:
            rank, at = awaited
        else:
            path.append((rank, at))
            at -= 1
    return path


def kept_by(problem: ProblemArrays, word: list[int]) -> list[float]:
    """Memory of a rank after each pass of its word."""
    last = (problem.kinds - 1) * problem.stages
    changes = [
        problem.size[code] if code < problem.stages else -problem.size[code - last] * (code >= last)
        for code in word
    ]
    return [*accumulate(changes, initial=0.0)]


def anneal(
    problem: ProblemArrays, words: Words, steps: int, hot: float, cold: float, seed: int
) -> tuple[float, Words]:
    """The best words by so many moves, and how long they take."""
    random = np.random.RandomState(seed)
    now = replay(problem, words)
    best, best_words = now.seconds, words
    for step in range(steps):
        path = critical(problem, words, now)
        if not path:
            break
        rank, at = path[random.randint(len(path))]
        far = 1 + int(random.exponential(3.0))
        if random.random_sample() < 0.5:
            to = at - far
        else:
            at, to = at - 1, at - 1 + far
        word = [*words[rank]]
        if at < 0 or not 0 <= to < len(word) or word[at] == word[to]:
            continue
        word.insert(to, word.pop(at))
        moved = [*words[:rank], word, *words[rank + 1 :]]
        is_within = max(kept_by(problem, word)) <= problem.limit[rank]
        found = replay(problem, moved) if is_within else NEVER
        heat = hot * (cold / hot) ** (step / steps)
        faster = now.seconds - found.seconds
        if faster >= 0 or (faster > -inf and random.random_sample() < exp(faster / heat)):
            words, now = moved, found
            if now.seconds < best:
                best, best_words = now.seconds, words
    return best, best_words

"""What CP-SAT proves of small problems, and makes of windows of orders, where it is installed."""

from __future__ import annotations

import time
from collections import Counter
from importlib.util import find_spec
from math import ceil

import numpy as np

from bfpp.sim.synthesis.bounds import Bound, kept_at_least, lower_bound
from bfpp.sim.synthesis.problem import TOLERANCE, Problem, Words
from bfpp.sim.synthesis.search import Found
from bfpp.sim.synthesis.window import Window

MOST_PASSES = 400
"""Of a problem of which all micro-batches are posed, about, where fewer say something of all."""

TOO_MANY = 1600
"""Passes of which nothing is proven in the time that there is."""

MOST_FREE = 200
"""Passes in a window, about."""


def is_available() -> bool:
    """Whether CP-SAT is installed."""
    return find_spec("ortools") is not None


def solve(problem: Problem, known: Found, seconds: float) -> tuple[Bound, Words]:
    """The bound that is proven in that time, and the best words: those `known`, or better ones.

    Of many micro-batches it is proven for the last of them. These begin when the first rank has
    had all others, no more at once than it may keep, each for as long as it is kept at least.
    """
    whole, at_once = problem.microbatches, _at_once(problem)
    passes = problem.passes.sum() / whole
    rounds = max(ceil((whole - max(MOST_PASSES / passes, 2 * at_once)) / at_once), 0)
    last = problem.of(whole - rounds * at_once)
    if last.passes.sum() > TOO_MANY:
        return lower_bound(problem), known.words
    if not rounds:
        proven, words = Window(problem, known, 0.0, np.inf).solved(seconds)
        return Bound(proven, "a proof of CP-SAT"), words or known.words
    words = [_last(word, last.microbatches) for word in known.words]
    proven, _ = Window(last, Found.of(last, words), 0.0, np.inf).solved(seconds)
    before = rounds * float(kept_at_least(problem)[0])
    by = f"a proof of CP-SAT for {last.microbatches} micro-batches, and the memory of rank 0"
    return Bound(before + proven, by), known.words


def _at_once(problem: Problem) -> int:
    """Micro-batches that the first rank may keep; all of them where it has several stages."""
    rank = problem.layout.placement[0]
    room, size = problem.room[rank], problem.sizes[0]
    if problem.held[rank].sum() > 1 or room >= size * problem.microbatches:
        return problem.microbatches
    return int(room / size)


def _last(word: list[int], count: int) -> list[int]:
    """The passes of the last micro-batches."""
    backwards, done = list[int](), Counter[int]()
    for code in reversed(word):
        done[code] += 1
        backwards += [code] if done[code] <= count else []
    return backwards[::-1]


def improved(problem: Problem, known: Found, seconds: float, bound: float) -> Found:
    """Window after window of a step, and again until none gains, or the time is over.

    Nothing is faster than the `bound`.
    """
    over = time.monotonic() + seconds
    share = min(MOST_FREE / float(problem.passes.sum()), 1.0)
    gains = True
    while gains and known.seconds > bound * (1 + TOLERANCE):
        gains = False
        for begin in np.arange(0.0, 1.0, share / 2) * known.seconds:
            if (left := over - time.monotonic()) <= 0:
                return known
            _, words = Window(problem, known, begin, begin + share * known.seconds).solved(left)
            if words and problem.within(words):
                found = Found.of(problem, words)
                gains |= found.seconds < known.seconds
                known = min(found, known, key=_seconds)
    return known


def _seconds(found: Found) -> float:
    return found.seconds

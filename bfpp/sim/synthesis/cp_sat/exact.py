"""CP-SAT, where it is installed: bounds of small problems, and better windows of orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import pairwise
from math import ceil
from statistics import mean

import numpy as np

from bfpp.sim.synthesis.bounds import Bound, kept_at_least, lower_bound
from bfpp.sim.synthesis.cp_sat.crossing import Crossing, lap
from bfpp.sim.synthesis.cp_sat.window import Window
from bfpp.sim.synthesis.deadline import Deadline
from bfpp.sim.synthesis.problem.problem import TOLERANCE, OrderingProblem, Words
from bfpp.sim.synthesis.search.annealing import TimedWords, search

MOST_PASSES = 400
"""About how many passes a model has of a problem whose last micro-batches bound all of it."""

TOO_MANY = 1600
"""Passes of a model that is too large to prove anything in the time available."""

MOST_CROSSINGS = 20_000
"""Choices of a model of crossings: with more, building it takes too long."""

SHARE_OF_CROSSINGS = 3 / 4
"""Of the time, where they prove anything."""

SHARE_OF_LAPS = 2 / 3
"""Of the time for those, where they are of many micro-batches."""

MANY_LAPS = 8
"""Laps (times that the first rank is full) of a step that is likely to be solved whole."""

LAPS = (2, 4, 8)
"""Laps of a model of micro-batches from anywhere in the step."""

MOST_FREE = 200
"""Passes in a window, about."""


def is_available() -> bool:
    """CP-SAT is installed."""
    return find_spec("ortools") is not None


def proven_at_once(
    problem: OrderingProblem, starts: Iterable[Words], enough: float, seconds: float
) -> tuple[Bound, list[Words]]:
    """The bound that is proven of the best known order, and CP-SAT's improvement of it.

    Neither is sought for a bound that words reach, nor for words that take no longer than `enough`.
    """
    within = [words for words in starts if problem.within(words)]
    known, bound = search(problem, within, 0.0), lower_bound(problem)
    if not known or known[0].seconds <= max(bound.seconds, enough) * (1 + TOLERANCE):
        return bound, []
    proven, words = solve(problem, known[0], seconds)
    return max(bound, proven), [words]


def refined(
    problem: OrderingProblem, limited: OrderingProblem, known: TimedWords, seconds: float
) -> tuple[TimedWords, Bound]:
    """The order that CP-SAT makes of a known one, and the bound, which another thread proves.

    The order keeps to the limits of the `limited` problem, the bound holds for the problem itself.
    """
    with ThreadPoolExecutor(1) as threads:
        proof = threads.submit(solve, problem, known, seconds)
        least = lower_bound(problem).seconds
        better = improved(
            limited, known, seconds, lambda: proof.result()[0].seconds if proof.done() else least
        )
    bound, words = proof.result()
    proven = [TimedWords.of(limited, words)] if limited.within(words) else []
    return min([better, *proven], key=_seconds), bound


def solve(problem: OrderingProblem, known: TimedWords, seconds: float) -> tuple[Bound, Words]:
    """The bound that is proven in that time, and the best words, at worst those `known`.

    Most of the time is for micro-batches that cross, if any do; the rest is for all passes.
    """
    deadline = Deadline(seconds)
    crossing = _of_crossings(problem, known, seconds * SHARE_OF_CROSSINGS)
    if crossing.seconds * (1 + TOLERANCE) >= known.seconds or not deadline.left:
        return crossing, known.words
    bound, words = _of_passes(problem, known, deadline.left)
    return max(bound, crossing), words


def _of_crossings(problem: OrderingProblem, known: TimedWords, seconds: float) -> Bound:
    """The bound by crossings: of the last few micro-batches, then of twice as many, and so on.

    Where these are far from all, of laps before the last few, too.
    """
    deadline, whole, at_once = Deadline(seconds), problem.microbatches, _at_once(problem)
    has_laps = whole > MANY_LAPS * at_once > MANY_LAPS
    of_last = Deadline(seconds * (1 - SHARE_OF_LAPS)) if has_laps else deadline
    bound, count, is_all = lower_bound(problem), 2 * at_once, True
    crossings = (at_once - 1) * (problem.layout.stages + 1)
    while is_all and at_once < whole and (left := of_last.left) > 0:
        rounds = max(ceil((whole - count) / at_once), 0)
        last = _Last(problem, known, rounds, at_once)
        if last.problem.microbatches * crossings > MOST_CROSSINGS:
            break
        proven, is_all = Crossing(last.problem, at_once, last.known.seconds).of_step(left)
        bound = max(bound, last.bound(proven, "the crossing of micro-batches"))
        if is_all and not rounds:
            return bound
        count *= 2
    return max(bound, _of_laps(problem, known, deadline)) if has_laps else bound


def _of_laps(problem: OrderingProblem, known: TimedWords, deadline: Deadline) -> Bound:
    """The bound by laps before the last few micro-batches, and these.

    With each number of micro-batches that a lap has a start of, over twice as many laps, and so on.
    """
    at_once, kept = _at_once(problem), float(kept_at_least(problem)[0])
    rounds = problem.microbatches // at_once - 2
    bound, ends = lower_bound(problem), list[float]()
    for first in range(2, at_once + 1):
        if not deadline.left:
            break
        while len(ends) < first:
            count = problem.microbatches - rounds * at_once - len(ends)
            few, last = _of_last(problem, known, count)
            ends.append(Crossing(few, at_once, last.seconds).of_step(deadline.left / 4)[0])
        for laps in LAPS:
            times, left = rounds // laps, deadline.left
            if not times or not left:
                break
            least, is_all = lap(problem, first, laps, known.seconds / times, left / 2)
            before = times * least + (rounds - times * laps) * kept
            by = f"the crossing of micro-batches ({first} of every {at_once})"
            bound = max(bound, Bound(before + mean(ends), by))
            if not is_all:
                break
    return bound


def _of_passes(problem: OrderingProblem, known: TimedWords, seconds: float) -> tuple[Bound, Words]:
    """The bound by all passes; where there are too many, by those of the last micro-batches."""
    whole, at_once = problem.microbatches, _at_once(problem)
    passes = problem.passes.sum() / whole
    rounds = max(ceil((whole - max(MOST_PASSES / passes, 2 * at_once)) / at_once), 0)
    last = _Last(problem, known, rounds, at_once)
    if last.problem.passes.sum() > TOO_MANY:
        return lower_bound(problem), known.words
    every = range(problem.layout.pp)
    proven, words = Window(last.problem, last.known, 0.0, np.inf, every).solved(seconds)
    return last.bound(proven, "a proof of CP-SAT"), (not rounds and words) or known.words


class _Last:
    """The last micro-batches of a problem, after rounds of as many as the first rank may keep.

    They cannot begin before the first rank has kept all others: a round at a time, each for the
    least time that a micro-batch is kept.
    """

    def __init__(
        self, problem: OrderingProblem, known: TimedWords, rounds: int, at_once: int
    ) -> None:
        self.before = rounds * float(kept_at_least(problem)[0]) if rounds else 0.0
        self.problem, self.known = _of_last(problem, known, problem.microbatches - rounds * at_once)

    def bound(self, proven: float, by: str) -> Bound:
        """The bound of the whole problem, from the proof for the last micro-batches."""
        if self.before:
            by += f" (last {self.problem.microbatches} micro-batches) and the memory of rank 0"
        return Bound(self.before + proven, by)


def _of_last(
    problem: OrderingProblem, known: TimedWords, count: int
) -> tuple[OrderingProblem, TimedWords]:
    """The last micro-batches alone, and the known words for them."""
    few = problem.of(count)
    return few, TimedWords.of(few, [_last(word, count) for word in known.words])


def _at_once(problem: OrderingProblem) -> int:
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


def improved(
    problem: OrderingProblem, known: TimedWords, seconds: float, bound: Callable[[], float]
) -> TimedWords:
    """Window after window of a step, and again until none gains, or the time is over.

    It ends early at the `bound`, which nothing is faster than.
    """
    deadline, gains = Deadline(seconds), True
    while gains:
        gains = False
        for begin, until, ranks in stretches(problem):
            left = deadline.left
            if not left or known.seconds <= bound() * (1 + TOLERANCE):
                return known
            window = Window(problem, known, begin * known.seconds, until * known.seconds, ranks)
            _, words = window.solved(left)
            if words and problem.within(words):
                candidate = TimedWords.of(problem, words)
                gains |= candidate.seconds < known.seconds
                known = min(candidate, known, key=_seconds)
    return known


def stretches(problem: OrderingProblem) -> Iterator[tuple[float, float, list[int]]]:
    """Passes to free at once, from and until a share of the step: all ranks, then neighbours.

    Two ranks are free for longer than all of them.
    """
    every = list(range(problem.layout.pp))
    for ranks in (every, *(map(list, pairwise(every)) if len(every) > 2 else ())):
        share = min(MOST_FREE / float(problem.passes[ranks].sum()), 1.0)
        for begin in np.arange(0.0, 1.0, share / 2).tolist():
            yield begin, begin + share, ranks


def _seconds(candidate: TimedWords) -> float:
    return candidate.seconds

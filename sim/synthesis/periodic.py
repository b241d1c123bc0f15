"""Orders of many micro-batches: found for few of them, with a period that is repeated.

If every rank's word has a stretch that runs each of its passes equally often, and what comes before
the stretches can run without them, then the stretches can follow one another as often as there are
micro-batches: each leaves the ranks as it met them, but for the numbers of micro-batches. It needs
no more memory, either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import Seconds
from bfpp.sim.synthesis.kernels import next_of
from bfpp.sim.synthesis.problem import Problem, Words, of_first
from bfpp.sim.synthesis.search import Found, Progress, distinct, search, with_starts

Counts = npt.NDArray[np.int64]

FEW = 4
"""Micro-batches a rank in which a warm-up, a period and a drain are found."""

PERIODS = (1, 2, 4)
"""Micro-batches of a period."""


def few_of(problem: Problem) -> Problem:
    """The same with so few micro-batches that whole periods are missing; itself, if it has few."""
    few = FEW * problem.layout.pp
    longest = max(PERIODS)
    if problem.microbatches < few + longest:
        return problem
    return problem.of(few + (problem.microbatches - few) % longest)


def search_periods(
    problem: Problem,
    starts: Sequence[Words],
    seconds: float,
    enough: float = 0.0,
    progress: Progress | None = None,
) -> list[Found]:
    """As `search`: with few micro-batches where there are many, and periods that are repeated."""
    few = few_of(problem)
    if few is problem:
        return search(problem, starts, seconds, enough, progress)
    begin = [of_first(words, few.microbatches) for words in starts]
    longer = [
        words
        for each in search(few, begin, seconds, progress=progress)
        for words in repeated(few, each.words, problem)
    ]
    if not longer:
        return search(problem, starts, seconds, enough, progress)
    return distinct([Found.of(problem, words) for words in (*starts, *longer)])


def repeated(few: Problem, words: Words, many: Problem) -> Iterator[Words]:
    """Words of many micro-batches: of each length of periods, that which took the least time."""
    more, start = many.microbatches - few.microbatches, with_starts(few, words)[1]
    done = [_done(few, word) for word in words]
    for period in PERIODS:
        lengths = [len(word) * period // few.microbatches for word in words]
        cuts = list(_cuts(few, done, start, lengths, period))
        if cuts:
            _, cut = min(cuts)
            yield [
                word[:at] + word[at : at + length] * (1 + more // period) + word[at + length :]
                for word, at, length in zip(words, cut, lengths, strict=True)
            ]


def _cuts(
    problem: Problem, done: list[Counts], start: Seconds, lengths: list[int], period: int
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Where a period may begin on each rank, with the time until the next one can there."""
    begins = [_begins(ran, length, period) for ran, length in zip(done, lengths, strict=True)]
    times = [row[places] for row, places in zip(start, begins, strict=True)]
    for time in times[0]:
        nearest = [int(np.searchsorted(each, time)) for each in times]
        if all(at < len(places) for at, places in zip(nearest, begins, strict=True)):
            cut = tuple(int(places[at]) for at, places in zip(nearest, begins, strict=True))
            if _can_run(problem, [ran[at] for ran, at in zip(done, cut, strict=True)]):
                ends = zip(start, cut, lengths, strict=True)
                yield max(float(row[at + length] - row[at]) for row, at, length in ends), cut


def _done(problem: Problem, word: list[int]) -> Counts:
    """By place of a word: how often each pass has run before it."""
    ran = np.zeros((len(word) + 1, problem.seconds.size), dtype=np.int64)
    ran[np.arange(1, len(word) + 1), word] = 1
    return ran.cumsum(axis=0)


def _begins(done: Counts, length: int, period: int) -> Counts:
    """Places from which each of the word's passes runs once for each micro-batch of a period.

    A pass comes after that, whose start says when the period is over.
    """
    own = done[-1] > 0
    ran = done[length:-1, own] - done[: -1 - length, own]
    return np.flatnonzero((ran == period).all(axis=1))


def _can_run(problem: Problem, done: Sequence[Counts]) -> bool:
    """Whether what has run on all ranks by then did not need anything that had not."""
    count, stages = np.sum(done, axis=0), problem.layout.stages
    needs = ((code, next_of(code, stages)) for code in range(problem.seconds.size))
    return all(count[code] >= count[then] for code, then in needs if then >= 0)

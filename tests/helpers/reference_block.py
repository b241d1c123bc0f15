"""Building blocks in plain Python: the reference of the core's."""

from __future__ import annotations

from math import exp, floor, inf

import numpy as np

from bfpp.core.synthesis.ordering_problem import ProblemArrays
from tests.helpers.reference_annealing import needed_by

Starts = dict[int, float]
"""By pass."""

TOLERANCE = 1e-9


def placed(problem: ProblemArrays, period: float, delay: list[float]) -> Starts | None:
    """Start of each pass, as soon as it may after its delay; none where one has no room.

    In turn along the stages and back, then weight halves.
    """
    stages, start = problem.stages, Starts()
    back = range(2 * stages - 1, stages - 1, -1)
    for code in [*range(stages), *back, *range(2 * stages, len(delay))]:
        ready = 0.0
        if (before := needed_by(problem, code)) is not None:
            ready = start[before] + problem.seconds[before] + problem.transfer[before]
        elif code:
            ready = start[code - stages] + problem.seconds[code - stages]
        start[code] = free_from(problem, period, start, code, ready + delay[code])
        if start[code] == inf:
            return None
    return start


def free_from(
    problem: ProblemArrays, period: float, start: Starts, code: int, ready: float
) -> float:
    """The time when the pass meets no other of its rank, in any period."""
    of_rank = (each for each in start if problem.rank[each] == problem.rank[code])
    others = sorted(of_rank, key=lambda each: (each % problem.stages, each))
    tolerance = TOLERANCE * period
    begin, before = ready, -inf
    while before < begin <= ready + period:
        before = begin
        for other in others:
            since = (begin - start[other]) % period
            if since > period - tolerance:
                since = 0.0
            busy = problem.seconds[other] - since
            if busy > tolerance:
                begin += busy
            elif since + problem.seconds[code] > period + tolerance:
                begin += period + busy
    return begin if begin <= ready + period else inf


def excess_of(problem: ProblemArrays, period: float, start: Starts) -> tuple[float, float]:
    """Memory of ranks beyond their limits, and on average, in stages of mean size."""
    last = (problem.kinds - 1) * problem.stages
    mean = sum(problem.size.tolist()) / problem.stages
    over = average = 0.0
    for rank in range(problem.ranks):
        stages = np.flatnonzero(problem.rank[: problem.stages] == rank).tolist()
        spans = {
            each: (start[each], start[last + each] + problem.seconds[last + each])
            for each in stages
        }
        kept = [0.0]
        for stage in stages:
            begin, end = spans[stage]
            average += problem.size[stage] * (end - begin) / period
            kept.append(
                sum(
                    problem.size[each]
                    * (
                        floor((begin - first) / period + TOLERANCE)
                        - floor((begin - until) / period + TOLERANCE)
                    )
                    for each, (first, until) in spans.items()
                )
            )
        over += max(0.0, max(kept) - problem.limit[rank])
    return over / mean, average / mean


def place_block(
    problem: ProblemArrays, period: float, tries: int, scale: float, seed: int
) -> tuple[bool, list[float], Starts]:
    """True if a block keeps to the limits; its delays, and its passes' starts."""
    random = np.random.RandomState(seed)
    delay, start, known = [0.0] * len(problem.seconds), Starts(), inf
    for nth in range(tries):
        new = [*delay]
        for _ in range(1 + random.randint(3) if nth else 0):
            code, what = random.randint(len(new)), random.random_sample()
            if what < 0.4:
                new[code] = 0.0
            elif what < 0.8:
                new[code] = max(0.0, new[code] + scale * random.normal())
            else:
                new[code] = 2.0 * scale * random.random_sample()
        if (found := placed(problem, period, new)) is None:
            continue
        over, average = excess_of(problem, period, found)
        cost = over + 1e-3 * average
        heat = 0.02 * (1 - nth / tries)
        if cost <= known or random.random_sample() < exp((known - cost) / heat):
            known, delay, start = cost, new, found
            if over == 0:
                return True, delay, start
    return False, delay, start

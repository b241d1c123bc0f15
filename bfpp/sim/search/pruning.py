"""The best configurations, without a simulation of those that cannot be among them.

Exact: a configuration that is left out cannot fit, or is slower than as many others as are wanted
and than one that needs no more memory, by bounds that no schedule passes. So the best, and those
that none undercuts in memory, are the same as if all were simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from math import inf
from typing import NamedTuple

from bfpp.schedules import Configuration
from bfpp.sim.search.evaluation import Evaluation, evaluate, evaluation_of
from bfpp.sim.search.objectives import Objective
from bfpp.sim.search.outcomes import Outcome, pareto, ranked
from bfpp.sim.search.search import Problem
from bfpp.traces.timeline.units import GIGABYTE

TOO_LARGE = "needs more memory than a device has"
TOO_SLOW = "is slower than the best, and than another that needs no more memory"


class Potential(NamedTuple):
    """The most throughput that a configuration may have, and the least memory that it may need."""

    throughput: float
    memory_gb: float


class SearchResult(NamedTuple):
    """Simulated configurations, and the number of others, by reason."""

    outcomes: list[Outcome]
    excluded: Counter[str]


def foremost(known: Sequence[Outcome], top: int, objective: Objective) -> list[Outcome]:
    """The best of some outcomes, and those on the front."""
    return [*ranked(known, objective)[:top], *pareto(ranked(known))]


class Best:
    """The fastest so far, and the front of those that need least memory."""

    def __init__(self, problem: Problem, top: int) -> None:
        self._objective = problem.objective
        self._top = top
        self._fitting: dict[Configuration, Outcome] = {}

    def add(self, outcome: Outcome) -> None:
        """Take one more into account."""
        if outcome.fits:
            kept = foremost([*self._fitting.values(), outcome], self._top, self._objective)
            self._fitting = {each.configuration: each for each in kept}

    def exceeds(self, bound: Potential) -> bool:
        """True if a configuration with that bound is neither among the best nor on the front."""
        passed = sum(self._passes(each, bound) for each in self._fitting.values())
        return passed >= self._top and any(
            each.samples_per_second > bound.throughput and each.memory_largest_gb <= bound.memory_gb
            for each in self._fitting.values()
        )

    def _passes(self, known: Outcome, bound: Potential) -> bool:
        """True if an outcome is better than anything within the bound; jitter has no bound."""
        if self._objective is Objective.ROBUSTNESS:
            return False
        if self._objective is Objective.MEMORY:
            return known.memory_largest_gb < bound.memory_gb
        return known.samples_per_second > bound.throughput


_best = lru_cache(1)(Best)
"""What a worker has found so far."""


def begin() -> None:
    """Forget what this process found before: how much is simulated is the same each time."""
    _best.cache_clear()


def evaluate_all(problem: Problem, chosen: Iterable[Configuration]) -> SearchResult:
    """Simulate some configurations, those too that cannot fit."""
    return SearchResult(evaluate(problem, chosen), Counter())


def evaluate_best(
    problem: Problem,
    chosen: Iterable[Configuration],
    top: int | None = None,
    met: Iterable[Outcome] = (),
) -> SearchResult:
    """Simulate those of some configurations that fit.

    Where it is said how many are asked for, those that may be among the best, or on the front, also
    of those that were `met` before.
    """
    known, best = evaluation_of(problem), None if top is None else _best(problem, top)
    if best:
        for each in met:
            best.add(each)
    result = SearchResult([], Counter())
    for configuration in chosen:
        if reason := _excluded(known, best, configuration, problem):
            result.excluded[reason] += 1
            continue
        outcome = known.outcome(configuration)
        if best:
            best.add(outcome)
        result.outcomes.append(outcome)
    return result


def _excluded(
    known: Evaluation, best: Best | None, configuration: Configuration, problem: Problem
) -> str | None:
    """Why a configuration need not be simulated, by bounds that get closer."""
    device = problem.cluster.device.usable_memory / GIGABYTE
    throughput = known.most_samples_per_second(configuration) if best else inf
    for least in known.least_memories(configuration):
        if least.reserved_gb > device:
            return TOO_LARGE
        if best and best.exceeds(Potential(throughput, least.total_gb)):
            return TOO_SLOW
    return None


def most_promising_first(problem: Problem, chosen: Sequence[Configuration]) -> list[Configuration]:
    """By the most throughput that configurations may have; those with one graph together."""
    known = evaluation_of(problem)
    groups = [list(group) for _, group in groupby(chosen, key=_graph_of)]
    groups.sort(key=lambda group: -max(map(known.most_samples_per_second, group)))
    return [configuration for group in groups for configuration in group]


def _graph_of(configuration: Configuration) -> tuple[object, ...]:
    return configuration.schedule, configuration.layout, configuration.communication

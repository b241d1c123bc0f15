"""The best configurations, without a simulation of those that cannot be among them.

Theory of operation. Branch and bound over a list: a configuration that is left out cannot fit, or
is slower than as many others as are wanted and than one that needs no more memory, by bounds that
no schedule passes. Bounds are asked in the order of what they cost, and the most promising graphs
are simulated first, after which bounds leave out most others.

Invariant: the best, and those that none undercuts in memory, are the same as if all were simulated,
in whichever order and on however many workers. So a bound leaves out what is worse, never what is
as good: of a tie, all are simulated.

Rejected: to keep the best of each round of shorter simulations (successive halving), or to sample.
Both are faster, and neither can say that nothing better was missed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from typing import NamedTuple
from uuid import uuid4

import numpy as np

from bfpp.schedules import Configuration
from bfpp.schedules.columns import Flags, Offsets, Seconds
from bfpp.sim.memory.peak_memory import safe_total
from bfpp.sim.search.bounds import Bounds, SharedBounds, bounds_of, closer_bounds
from bfpp.sim.search.evaluation import Evaluation, Predicted, evaluate, evaluation_of
from bfpp.sim.search.objectives import Objective
from bfpp.sim.search.outcomes import Outcome, Outcomes
from bfpp.sim.search.problem import Problem
from bfpp.sim.search.ranking import cases
from bfpp.sim.search.space import Graph, Space
from bfpp.traces.timeline.units import GIGABYTE

TOO_LARGE = "needs more memory than may be reserved"
TOO_SLOW = "is slower than the best, and than another that needs no more memory"


class SearchResult(NamedTuple):
    """Simulated configurations, and the number of others, by reason."""

    outcomes: Outcomes
    excluded: Counter[str]


class CaseBest:
    """The best of a number of devices and a batch size: the fastest, or smallest, and the front.

    Columns of samples a second, and of memory; the best need no more of it than `most`.
    """

    def __init__(self, objective: Objective, top: int, most: float) -> None:
        self._objective, self._top, self._most = objective, top, most
        self._speed, self._needed = np.zeros((2, 0))

    def add(self, speed: Seconds, needed: Seconds) -> None:
        """Take some more that fit into account."""
        speed, needed = np.append(self._speed, speed), np.append(self._needed, needed)
        by_speed = np.lexsort((needed, -speed))
        least = np.minimum.accumulate(needed[by_speed])
        front = by_speed[np.append(True, needed[by_speed][1:] < least[:-1])]
        safe = needed <= self._most
        merits = (needed, -speed) if self._objective is Objective.MEMORY else (-speed, needed)
        kept = np.union1d(front, np.lexsort((*merits[::-1], ~safe))[: self._top])
        self._speed, self._needed = speed[kept], needed[kept]

    def exceeds(self, speed: Seconds, needed: Seconds) -> Flags:
        """Those whose bounds are neither among the best nor on the front; jitter has no bound."""
        if self._objective is Objective.ROBUSTNESS or len(self._speed) < self._top:
            return np.zeros(len(speed), dtype=bool)
        faster: Flags = self._speed > speed[:, np.newaxis]
        smaller: Flags = self._needed < needed[:, np.newaxis]
        passed = smaller if self._objective is Objective.MEMORY else faster
        passed = passed & (self._needed <= self._most)
        undercut = faster & (self._needed <= needed[:, np.newaxis])
        exceeding: Flags = undercut.any(axis=1) & (passed.sum(axis=1) >= self._top)
        return exceeding


@dataclass(frozen=True)
class Request:
    """A number of best configurations that a search asks for, those it `met` before among them.

    Another search of the same problem is not equal: it begins with nothing, and so simulates as
    much each time.
    """

    top: int
    met: Outcomes | None = field(default=None, compare=False)
    search: str = field(default_factory=lambda: uuid4().hex)


Cases = Iterable[tuple[tuple[int, int], Offsets | slice]]
"""Numbers of devices and batch sizes, each with the places of its configurations."""


class Best:
    """The best of each case in a search, so far."""

    def __init__(self, problem: Problem, request: Request) -> None:
        most = safe_total(problem.cluster.device.usable_memory, problem.risk) / GIGABYTE
        self._cases = defaultdict[tuple[int, int], CaseBest](
            lambda: CaseBest(problem.objective, request.top, most)
        )
        if request.met is not None:
            known = request.met.take(request.met.fits)
            self.add(cases(known.space), known.samples_per_second, known.memory_largest_gb)

    def add(self, every: Cases, speed: Seconds, needed: Seconds) -> None:
        """Take some more that fit into account."""
        for case, places in every:
            self._cases[case].add(speed[places], needed[places])

    def exceeds(self, every: Cases, speed: Seconds, needed: Seconds) -> Flags:
        """Those whose bounds are not good enough for their case."""
        exceeding = np.zeros(len(speed), dtype=bool)
        for case, places in every:
            exceeding[places] = self._cases[case].exceeds(speed[places], needed[places])
        return exceeding


_best = lru_cache(1)(Best)
"""A worker's record of the best over all pieces of a search: each configuration once."""


def evaluate_all(problem: Problem, chosen: Iterable[Configuration]) -> SearchResult:
    """Simulate some configurations, those too that cannot fit."""
    return SearchResult(evaluate(problem, chosen), Counter())


def evaluate_best(
    problem: Problem,
    chosen: Iterable[Configuration],
    request: Request | None = None,
    bounds: SharedBounds | None = None,
) -> SearchResult:
    """Simulate those of some configurations that fit.

    On request, those that may be among the best, or on the front. Their `bounds`, if known, are not
    worked out again.
    """
    known, space = evaluation_of(problem), Space.of(chosen)
    best = None if request is None else _best(problem, request)
    columns = bounds_of(known, space) if bounds is None else bounds.columns
    return _Pruned(known, space, columns, best).result()


class _Pruned:
    """A search that prunes, graph by graph."""

    def __init__(self, known: Evaluation, space: Space, bounds: Bounds, best: Best | None) -> None:
        self._known, self._space, self._bounds, self._best = known, space, bounds, best
        self._device = known.problem.cluster.device.usable_memory / GIGABYTE
        self._excluded = Counter[str]()
        self._case, self._cases = np.zeros(len(space), dtype=np.int64), list[tuple[int, int]]()
        for case, places in cases(space):
            self._case[places] = len(self._cases)
            self._cases.append(case)

    def result(self) -> SearchResult:
        """Simulated configurations, and the reasons why the others are not."""
        known, places, predicted = self._known, [np.zeros(0, dtype=np.int64)], []
        for graph in self._space.graphs():
            left = self._left(graph)
            if not len(left):
                continue
            some = self._space.take(left)
            predicted.append(known.predicted(graph.step, map(known.physical, some.settings)))
            places.append(left)
            if self._best:
                speed, needed = some.batch / predicted[-1].seconds, predicted[-1].fullest.total_gb
                self._best.add(self._cases_of(left), speed, needed)
        simulated = self._space.take(np.concatenate(places))
        return SearchResult(
            known.outcomes_of(simulated, Predicted.joined(predicted)), self._excluded
        )

    def _cases_of(self, places: Offsets) -> Cases:
        """The cases of some places; most graphs have one."""
        numbers = self._case[places]
        if len(numbers) and (numbers == numbers[0]).all():
            return [(self._cases[numbers[0]], slice(None))]
        kinds = np.unique(numbers).tolist()
        return [(self._cases[each], np.flatnonzero(numbers == each)) for each in kinds]

    def _left(self, graph: Graph) -> Offsets:
        """The places that have to be simulated, by bounds that get closer."""
        places = np.arange(graph.places.start, graph.places.stop)
        left, bounds = self._within(places, self._bounds.take(graph.places))
        in_time = self._best is not None
        for closer in closer_bounds(self._known, graph.step, in_time=in_time):
            if not len(left):
                break
            physicals = [*map(self._known.physical, self._space.take(left).settings)]
            left, bounds = self._within(left, closer(physicals, bounds))
        return left

    def _within(self, places: Offsets, bounds: Bounds) -> tuple[Offsets, Bounds]:
        """Those that may fit and be wanted within these bounds."""
        fits = bounds.reserved_gb <= self._device
        self._exclude(TOO_LARGE, fits)
        places, bounds = places[fits], bounds.take(fits)
        if self._best is None or not len(places):
            return places, bounds
        exceed = self._best.exceeds(self._cases_of(places), bounds.throughput, bounds.memory_gb)
        self._exclude(TOO_SLOW, ~exceed)
        return places[~exceed], bounds.take(~exceed)

    def _exclude(self, reason: str, kept: Flags) -> None:
        if left_out := len(kept) - int(np.count_nonzero(kept)):
            self._excluded[reason] += left_out


def most_promising_first(problem: Problem, chosen: Space) -> Space:
    """By the most throughput that configurations may have; those with one graph together."""
    bounds = bounds_of(evaluation_of(problem), chosen)
    return chosen.take(by_promise(chosen, bounds.throughput))


def by_promise(chosen: Space, throughput: Seconds) -> Offsets:
    """The places of configurations in that order."""
    graphs = [graph.places for graph in chosen.graphs()]
    if not graphs:
        return np.zeros(0, dtype=np.int64)
    begins = np.array([each.start for each in graphs])
    order = np.argsort(-np.maximum.reduceat(throughput, begins), kind="stable")
    places = [np.arange(graphs[each].start, graphs[each].stop) for each in order.tolist()]
    return np.concatenate(places)


def nothing_can_fit(problem: Problem, bounds: Bounds) -> bool:
    """True if each configuration needs more than a device has, however it is scheduled."""
    return bool((bounds.reserved_gb > problem.cluster.device.usable_memory / GIGABYTE).all())


def nearest_of(problem: Problem, chosen: Space) -> Outcome:
    """The prediction of the configuration that needs least memory, which is known before it."""
    known, smallest, nearest = evaluation_of(problem), inf, 0
    least = bounds_of(known, chosen).memory_gb
    for place in np.argsort(least, kind="stable").tolist():
        if least[place] > smallest:
            break
        [step] = (graph.step for graph in chosen[place : place + 1].graphs())
        [memories] = known.memories(
            step, [*map(known.physical, chosen[place : place + 1].settings)]
        )
        needed = memories.fullest.total_gb
        if needed < smallest:
            smallest, nearest = needed, place
    return known.outcome(chosen[nearest])

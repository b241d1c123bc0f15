"""The least memory within a step time: limits are lowered until no order keeps to them.

Each limit is between the lowest peak so far and the highest limit that failed, and is searched as
for the shortest step. A limit at which no order can be fast enough, by the lower bound of the step
or a proof of CP-SAT, is a lower bound of the peak.

Where there is more to choose, choices and limits are lowered in turn: neighbours of a choice with
the order as it is, then the order of what is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import starmap
from math import ceil, inf, log2

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.settings.recomputation import FULL_RECOMPUTATION
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.synthesis.bounds import Bound, lower_bound
from bfpp.sim.synthesis.deadline import Deadline
from bfpp.sim.synthesis.joint.descent import Choosing, Chosen, quickest
from bfpp.sim.synthesis.joint.joint_bound import peak_of_any_cut
from bfpp.sim.synthesis.ordering import BoardSearch, Candidate
from bfpp.sim.synthesis.outcome import Peak, Synthesis, best_of
from bfpp.sim.synthesis.problem.memory_limits import FIELD, Memory
from bfpp.sim.synthesis.problem.placements import Board
from bfpp.sim.synthesis.problem.problem import TOLERANCE, OrderingProblem, Words
from bfpp.sim.synthesis.search.annealing import Progress

HALVINGS = 40
"""Steps of the bisection for the bound."""

SHARE_OF_TIES = 1 / 4
"""Of the time at most, for the shortest step of the least peak."""

TURNS = 3
"""Attempts to lower the choices, and the limits after them."""


def least_memory(
    fastest: Sequence[tuple[Board, Synthesis]], slack: float, seconds: float,
    progress: Progress | None, choosing: Choosing,
) -> Synthesis:  # fmt: skip
    """The order of the least peak on any board, at most a share of `slack` above the shortest step.

    Each board has the shortest step of its search, with the best choices, and `seconds` if
    that is short enough. Registered schedules that are fast enough compete, without a choice.
    """
    shortest = best_of([synthesis for _, synthesis in fastest])
    within = shortest.seconds * (1 + slack)
    tried = [_Least(*each, within, choosing) for each in fastest if each[1].seconds <= within]
    for each in tried:
        each.lower(seconds, progress)
    best = min(tried, key=_peak)
    if choosing.names:
        searches = starmap(choosing.search_as, fastest)
        bounds = [peak_of_any(choosing, each, within, best.peak) for each in searches]
    else:
        # On the other boards an order that the search missed may be fast enough.
        others = (choosing.on(board) for board, synthesis in fastest if synthesis.seconds > within)
        bounds = [(each.bound, each.by) for each in tried]
        bounds += [peak_bound(each.problem, each.memory, within, best.peak) for each in others]
    bound, by = min(bounds)
    ruled = min(tried, key=_peak_of_rule)
    return replace(
        best.best,
        bound=shortest.bound,
        rule=ruled.rule and ruled.rule.experiment,
        rule_seconds=ruled.rule and ruled.rule.seconds,
        peak=Peak(best.peak, best.memory.unit, within, bound, by, ruled.peak_of_rule),
    )


def peak_of_any(
    choosing: Choosing, search: BoardSearch, within: float, most: float
) -> tuple[float, str]:
    """The bound of the peak, whatever is chosen.

    Passes are shortest where nothing is recomputed, and memory is least where all layers are.
    """
    memory, quick = search.memory, quickest(choosing, search)
    if "recompute" in choosing.names:
        policy = str(FULL_RECOMPUTATION)
        memory = memory.of(search.board.experiment.changed(recompute=policy))
    if "cut" in choosing.names:
        return peak_of_any_cut(quick, memory, within, most)
    problem = replace(quick.problem, sizes=memory.sizes, limits=memory.limits)
    return peak_bound(problem, memory, within, most)


def peak_bound(
    problem: OrderingProblem, memory: Memory, within: float, most: float
) -> tuple[float, str]:
    """Lower bound of the fullest rank's peak, of orders that take at most `within`, and its reason.

    `most` is a peak of one of them.
    """
    low, high, by = 0.0, most, "one micro-batch alone"
    for _ in range(HALVINGS):
        level = (low + high) / 2
        step = _least_step(problem.limited(memory.within(level).limits))
        if step.seconds > within * (1 + TOLERANCE):
            low, by = level, step.by
        else:
            high = level
    return min(memory.above(low), most), by


def _least_step(problem: OrderingProblem) -> Bound:
    return lower_bound(problem) if problem.has_room.all() else Bound(inf, "one micro-batch alone")


class _Least:
    """The best order so far with the search on its choices, and the highest limit that failed."""

    def __init__(self, board: Board, fastest: Synthesis, within: float, choosing: Choosing) -> None:
        self.choosing, self.within = choosing, within
        self.search = choosing.search_as(board, fastest)
        self.best, self.peak = fastest, self._peak(fastest.experiment)
        self.rule: Candidate | None = None
        self.peak_of_rule: float | None = None
        with suppress(InvalidConfiguration):  # only with other choices may it fit
            self._compete(choosing.on(board) if choosing.names else self.search)
        self._begin()

    def _compete(self, search: BoardSearch) -> None:
        """With the rule of the least peak of those that are fast enough."""
        fast = [each for each in search.fitting_rules if self._is_fast(each.seconds)]
        if not fast:
            return
        self.rule = min(fast, key=lambda each: float(each.peaks.max()))
        self.peak_of_rule = float(self.rule.peaks.max())
        if self.peak_of_rule < self.peak:
            self.search, self.peak = search, self.peak_of_rule
            self.best = replace(
                self.best, experiment=self.rule.experiment, seconds=self.rule.seconds
            )

    def _begin(self) -> None:
        """Begin with the bound of the choices."""
        self.bound, self.by = peak_bound(self.search.problem, self.memory, self.within, self.peak)
        self.failed = self.bound - self.memory.step

    @property
    def memory(self) -> Memory:
        """The memory limits of the choices."""
        return self.search.memory

    def _peak(self, experiment: Experiment) -> float:
        return float(self.memory.peaks(experiment).max())

    def _is_fast(self, seconds: float) -> bool:
        return seconds <= self.within * (1 + TOLERANCE)

    @property
    def _between(self) -> int:
        """Number of limits left between the peak and the highest limit that failed."""
        return ceil((self.peak - self.failed) / self.memory.step - TOLERANCE) - 1

    def lower(self, seconds: float, progress: Progress | None) -> None:
        """Choices and limits in turn, for that time."""
        deadline = Deadline(seconds)
        for turns in range(TURNS if self.choosing.names else 1, 0, -1):
            if self.choosing.names:
                self._choose(Deadline(deadline.left / turns / 2))
            self._seek(deadline.left / turns, progress)
        self._shorten(min(deadline.left, seconds * SHARE_OF_TIES))

    def _shorten(self, seconds: float) -> None:
        """The shortest step that keeps no more."""
        with suppress(InvalidConfiguration):
            lowest = self.search.limited(self.memory.within(self.peak))
            shorter = lowest.best(seconds)
            if shorter.seconds < self.best.seconds:
                self.best, self.peak = shorter, self._peak(shorter.experiment)

    def _choose(self, deadline: Deadline) -> None:
        """The choices of the lowest peak, with the order as it is."""
        layout = self.search.board.layout
        words = self.search.problem.words(self.best.experiment.rule.orders(layout))
        with suppress(InvalidConfiguration):
            now = self._rated(self.search, words or [])
            lowest = self.choosing.lowest(self._rated, now, deadline)
            if lowest.merit[0] > self.peak * (1 + TOLERANCE):
                return  # in halves, passes of a rule may keep more than whole
            [chosen] = lowest.search.predicted([lowest.words])
            self.search, (self.peak, *_) = lowest.search, lowest.merit
            self.best = replace(self.best, experiment=chosen.experiment, seconds=chosen.seconds)
            self._begin()

    def _rated(self, search: BoardSearch, words: Words) -> Chosen:
        """The lowest peak is the best, on the fewest ranks, and the shortest of such steps."""
        for each in search.predicted([words]):
            if each.fits and self._is_fast(each.seconds):
                highest = float(each.peaks.max())
                fullest = float((each.peaks > highest * (1 - TOLERANCE)).sum())
                load = each.peaks[search.board.layout.rank_of_stage]
                return Chosen((highest, fullest, each.seconds), load, search, words)
        raise InvalidConfiguration(FIELD, "the order takes too long, or keeps too much")

    def _seek(self, seconds: float, progress: Progress | None) -> None:
        """Try limits for that time."""
        deadline = Deadline(seconds)
        while (between := self._between) > 0 and (left := deadline.left) > 0:
            if progress:
                progress(deadline.passed, self.best.seconds)
            level = self.peak - ceil(between / 2) * self.memory.step
            self._try(level, left / ceil(log2(between + 1)))

    def _try(self, level: float, seconds: float) -> None:
        with suppress(InvalidConfiguration):
            lowered = self.search.limited(self.memory.within(level))
            lower = lowered.best(seconds, enough=self.within)
            if self._is_fast(lower.seconds):
                self.best, self.peak = lower, self._peak(lower.experiment)
                return
            if not self._is_fast(lower.bound.seconds):
                self.bound, self.by = self.memory.above(level), lower.bound.by
        self.failed = level


def _peak(least: _Least) -> float:
    return least.peak


def _peak_of_rule(least: _Least) -> float:
    return inf if least.peak_of_rule is None else least.peak_of_rule

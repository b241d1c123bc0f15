"""The least memory within a step time: limits are lowered until no order is found within them.

Each limit is between the lowest peak so far and the highest limit that failed, and is searched as
for the shortest step. A limit at which no order can be fast enough, by the lower bound of the step
or a proof of CP-SAT, is a lower bound of the peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil, inf, log2

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.synthesis.bounds import Bound, lower_bound
from bfpp.sim.synthesis.deadline import Deadline
from bfpp.sim.synthesis.memory import Memory
from bfpp.sim.synthesis.ordering import BoardSearch, Candidate
from bfpp.sim.synthesis.outcome import Peak, Synthesis, best_of
from bfpp.sim.synthesis.problem import TOLERANCE, OrderingProblem
from bfpp.sim.synthesis.search import Progress

HALVINGS = 40
"""Steps of the bisection for the bound."""


def least_memory(
    fastest: Sequence[tuple[BoardSearch, Synthesis]], slack: float, seconds: float,
    progress: Progress | None,
) -> Synthesis:  # fmt: skip
    """The order of the least peak on any board, at most a share of `slack` above the shortest step.

    Each board has the shortest step that its search found, and `seconds` if that is short enough.
    Registered schedules that are fast enough compete.
    """
    shortest = best_of([found for _, found in fastest])
    within = shortest.seconds * (1 + slack)
    tried = [_Least(*each, within) for each in fastest if each[1].seconds <= within]
    for each in tried:
        each.seek(seconds, progress)
    best = min(tried, key=_peak)
    # On the other boards an order that was not found may be fast enough.
    others = (search for search, found in fastest if found.seconds > within)
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


def peak_bound(
    problem: OrderingProblem, memory: Memory, within: float, most: float
) -> tuple[float, str]:
    """What the fullest rank keeps at least, of any order that takes at most `within`, and why.

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
    """The best order so far, the bound, and the highest limit that failed."""

    def __init__(self, search: BoardSearch, fastest: Synthesis, within: float) -> None:
        self.search, self.memory, self.within = search, search.memory, within
        self.best, self.peak = fastest, self.memory.peak(fastest.experiment)
        self.rule = self._least(search.fitting_rules)
        self.peak_of_rule = None if self.rule is None else self.memory.peak(self.rule.experiment)
        if self.rule and self.peak_of_rule is not None and self.peak_of_rule < self.peak:
            self.peak = self.peak_of_rule
            self.best = replace(fastest, experiment=self.rule.experiment, seconds=self.rule.seconds)
        self.bound, self.by = peak_bound(search.problem, self.memory, within, self.peak)
        self.failed = self.bound - self.memory.step

    def _least(self, rules: Sequence[Candidate]) -> Candidate | None:
        """The rule of the least peak of those that are fast enough."""
        fast = [each for each in rules if self._is_fast(each.seconds)]
        return min(fast, key=lambda each: self.memory.peak(each.experiment), default=None)

    def _is_fast(self, seconds: float) -> bool:
        return seconds <= self.within * (1 + TOLERANCE)

    @property
    def _between(self) -> int:
        """How many limits there are between the peak and what failed."""
        return ceil((self.peak - self.failed) / self.memory.step - TOLERANCE) - 1

    def seek(self, seconds: float, progress: Progress | None) -> None:
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
            found = lowered.best(seconds, enough=self.within)
            if self._is_fast(found.seconds):
                self.best, self.peak = found, self.memory.peak(found.experiment)
                return
            if not self._is_fast(found.bound.seconds):
                self.bound, self.by = self.memory.above(level), found.bound.by
        self.failed = level


def _peak(least: _Least) -> float:
    return least.peak


def _peak_of_rule(least: _Least) -> float:
    return inf if least.peak_of_rule is None else least.peak_of_rule

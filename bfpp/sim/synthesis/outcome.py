"""The result of synthesis: an experiment with its best order, and how good that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import TypeVar

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.synthesis.bounds import Bound
from bfpp.sim.synthesis.problem.objectives import Aim

Each = TypeVar("Each")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Peak:
    """The peak of the fullest rank, in the `unit`: micro-batches of a rank's work, or reserved GiB.

    No order that takes at most `within` seconds has a peak below the `bound`, which is given `by`
    something. `of_rule` is the lowest peak of the registered schedules that are as fast.
    """

    amount: float
    unit: str
    within: float
    bound: float
    by: str
    of_rule: float | None = None


@dataclass(frozen=True)
class Synthesis:
    """The experiment with the best order of a search, and how good that is.

    `seconds` is the value of the objective, `aim`, and `bound` its lower bound for these stages
    (for robustness, without jitter). `rule` is the best registered schedule within the memory
    limit, if there is one, and `rule_seconds` its value. Where memory was minimised, the seconds
    are those of the step, and `peak` has the memory.
    """

    experiment: Experiment
    placement: str
    aim: Aim
    seconds: float
    bound: Bound
    rule: Experiment | None
    rule_seconds: float | None
    peak: Peak | None = None

    @cached_property
    def step_time(self) -> float:
        """Of the experiment."""
        return Aim.STEP.seconds(self.experiment)

    @cached_property
    def rule_step_time(self) -> float | None:
        """Of the best rule, if there is one."""
        return None if self.rule is None else Aim.STEP.seconds(self.rule)

    @property
    def gap(self) -> float:
        """Excess of the objective over its bound, as a share of the bound."""
        if self.peak is not None:
            return self.peak.amount / self.peak.bound - 1
        return self.seconds / self.bound.seconds - 1


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended the search, with the `best` so far."""

    def __init__(self, best: Synthesis) -> None:
        super().__init__()
        self.best = best


def best_of(results: Sequence[Synthesis]) -> Synthesis:
    """The fastest on several boards, against the fastest rule on any of them."""
    best = min(results, key=lambda each: each.seconds)
    rule = min(results, key=lambda each: inf if each.rule is None else each.rule_seconds or 0.0)
    bound = min(each.bound for each in results)
    return replace(best, bound=bound, rule=rule.rule, rule_seconds=rule.rule_seconds)


def all_feasible(find: Callable[[Each], Result], each_of: Iterable[Each]) -> list[Result]:
    """Results of all searches that gave one; raises the last refusal if none did."""
    results, refused = [], None
    for each in each_of:
        try:
            results.append(find(each))
        except InvalidConfiguration as error:
            refused = error
    if refused and not results:
        raise refused
    return results

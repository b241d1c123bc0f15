"""An experiment in, the same with the best order that was found out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from typing import TypeVar

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.invalid import chosen
from bfpp.sim.experiment import Experiment
from bfpp.sim.synthesis.aims import Aim
from bfpp.sim.synthesis.least_memory import least_memory
from bfpp.sim.synthesis.memory import Limits, memory_of
from bfpp.sim.synthesis.ordering import BoardSearch, problem_of
from bfpp.sim.synthesis.outcome import Synthesis
from bfpp.sim.synthesis.placements import Board, boards
from bfpp.sim.synthesis.search import Progress

SHARE_OF_FASTEST = 1 / 3
"""Of the time, for the shortest step, where memory is minimised within some slack of that."""

Each = TypeVar("Each")
Result = TypeVar("Result")


def synthesize(
    experiment: Experiment,
    *,
    memory_limit: Limits = None,
    memory_gb: Limits = None,
    placement: str = "contiguous",
    split: bool = True,
    objective: Aim | str = Aim.STEP,
    slack: float = 0.0,
    seconds: float = 10.0,
    progress: Progress | None = None,
) -> Synthesis:
    """Seek the order with the shortest step; the experiment's own schedule is not used.

    Or with what the `objective` says: `step`, `period`, `robustness` or `memory`, the least peak
    of the fullest rank in a step that takes at most a share of `slack` longer than the shortest.

    `memory_limit` is the most activations that each rank keeps, one number for all or one a
    rank, in micro-batches of a rank's work (`peak_microbatches`); with a model, `memory_gb` is
    what a rank may reserve, in 2^30 bytes. Backward passes may be in halves, if `split`. The
    search takes about `seconds`. Raises `InvalidConfiguration` where no order keeps to the limit.

    >>> from bfpp.sim.experiment import Experiment
    >>> found = synthesize(Experiment("1f1b", pp=2, microbatches=4), seconds=0.1)
    >>> found.step_time, found.bound.seconds
    (13.0, 13.0)
    """
    aim = chosen(Aim, "objective", objective)
    _require_slack(slack, aim)
    made = boards(experiment, placement, split=split)
    share = seconds / len(made)

    def on(board: Board) -> BoardSearch:
        memory = memory_of(board.experiment, memory_limit, memory_gb)
        return BoardSearch(board, memory, aim, problem_of(board, memory))

    searches = _those_that_can(on, made)
    if aim is not Aim.MEMORY:
        return _best(_those_that_can(lambda each: each.best(share, progress), searches))
    first = share * SHARE_OF_FASTEST
    fastest = _those_that_can(lambda each: (each, each.best(first, progress)), searches)
    within = min(found.seconds for _, found in fastest) * (1 + slack)
    return min(
        (
            least_memory(each, found, within, share - first, progress)
            for each, found in fastest
            if found.seconds <= within
        ),
        key=_peak,
    )


def _require_slack(slack: float, aim: Aim) -> None:
    if slack and aim is not Aim.MEMORY:
        raise InvalidConfiguration("slack", f"goes with --objective {Aim.MEMORY}, not {aim}")
    if not 0 <= slack < inf:
        raise InvalidConfiguration("slack", "must be a share of the step time of at least 0")


def _peak(found: Synthesis) -> float:
    return found.peak.amount if found.peak else inf


def _those_that_can(find: Callable[[Each], Result], each_of: Iterable[Each]) -> list[Result]:
    """What is found of each; raises the last refusal if that is nothing."""
    found, refused = [], None
    for each in each_of:
        try:
            found.append(find(each))
        except InvalidConfiguration as error:
            refused = error
    if refused and not found:
        raise refused
    return found


def _best(found: list[Synthesis]) -> Synthesis:
    """The fastest of several placements, against the fastest rule on any of them."""
    best = min(found, key=lambda each: each.seconds)
    rule = min(found, key=lambda each: inf if each.rule is None else each.rule_seconds or 0.0)
    bound = min(each.bound for each in found)
    return replace(best, bound=bound, rule=rule.rule, rule_seconds=rule.rule_seconds)

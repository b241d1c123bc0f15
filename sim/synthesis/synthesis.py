"""An experiment in, the same with the best order that was found out."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from bfpp.schedules import P2P, InvalidConfiguration, Layout
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.given_orders import GivenOrders
from bfpp.schedules.invalid import chosen
from bfpp.schedules.lowering import Deadlock
from bfpp.sim.experiment import Experiment
from bfpp.sim.synthesis.aims import Aim
from bfpp.sim.synthesis.bounds import Bound, lower_bound
from bfpp.sim.synthesis.exact import improved, is_available, solve
from bfpp.sim.synthesis.memory import FIELD, Limits, Memory, memory_of
from bfpp.sim.synthesis.placements import Board, boards
from bfpp.sim.synthesis.problem import TOLERANCE, Problem, Words, priced
from bfpp.sim.synthesis.search import Found, Progress, search

ROUNDS = 3
"""How often memory limits are tightened where a prediction needs more than was reckoned."""

SHARE_OF_PROOF = 1 / 3
"""Of the time, for what CP-SAT proves where it is installed."""

TITLE = "synthesised"


@dataclass(frozen=True)
class Synthesis:
    """The experiment with the best order found, and how good that is.

    `seconds` is what was minimised, by `aim`. `bound` is what no order on these stages
    can beat; of robustness, without jitter. `rule` is the best registered schedule that keeps to
    the memory limit, if any does, with its `rule_seconds`.
    """

    experiment: Experiment
    placement: str
    aim: Aim
    seconds: float
    bound: Bound
    rule: Experiment | None
    rule_seconds: float | None

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
        """By how much it is longer than the bound, as a share of it."""
        return self.seconds / self.bound.seconds - 1


def synthesize(
    experiment: Experiment,
    *,
    memory_limit: Limits = None,
    memory_gb: Limits = None,
    placement: str = "contiguous",
    split: bool = True,
    objective: Aim | str = Aim.STEP,
    seconds: float = 10.0,
    progress: Progress | None = None,
) -> Synthesis:
    """Seek the order with the shortest step; the experiment's own schedule is not used.

    Or with what the `objective` says: `step`, `period` or `robustness`.

    `memory_limit` is the most activations that each rank keeps, one number for all or one a
    rank, in micro-batches of a rank's work (`peak_microbatches`); with a model, `memory_gb` is
    what a rank may reserve, in 2^30 bytes. Backward passes may be in halves, if `split`. The
    search takes about `seconds`. Raises `InvalidConfiguration` where no order keeps to the limit.

    >>> from bfpp.sim.experiment import Experiment
    >>> found = synthesize(Experiment("1f1b", pp=2, microbatches=4), seconds=0.1)
    >>> found.step_time, found.bound.seconds
    (13.0, 13.0)
    """
    found, refused, aim = [], None, chosen(Aim, "objective", objective)
    made = boards(experiment, placement, split=split)
    for board in made:
        try:
            memory = memory_of(board.experiment, memory_limit, memory_gb)
            sought = _Search(board, memory, aim)
            found.append(sought.best(seconds / len(made), progress))
        except InvalidConfiguration as error:
            refused = error
    if refused and not found:
        raise refused
    best = min(found, key=lambda each: each.seconds)
    rule = min(found, key=lambda each: inf if each.rule is None else each.rule_seconds or 0.0)
    bound = min(each.bound for each in found)
    return replace(best, bound=bound, rule=rule.rule, rule_seconds=rule.rule_seconds)


class _Candidate(NamedTuple):
    """What is sought, of an order as the engine sees it, and each rank's excess of its limit."""

    seconds: float
    experiment: Experiment
    excess: Numbers

    @property
    def fits(self) -> bool:
        """Whether it keeps to all limits."""
        return bool((self.excess <= 0).all())


class _Search:
    """On one board: from its rules, and from nothing."""

    def __init__(self, board: Board, memory: Memory, aim: Aim) -> None:
        self.board, self.layout, self.memory, self.aim = board, board.layout, memory, aim
        experiment = board.experiment
        experiment.communication.require()
        # Queues change no price, and orders that are only priced may deadlock in them.
        graph = experiment.changed(p2p=P2P.CHANNELS, eager=False).graph()
        self.problem = Problem(
            self.layout,
            board.operations,
            *priced(graph, experiment.costs.costs(graph), board.operations),
            memory.sizes,
            memory.limits,
        )
        self._require_room()

    def _require_room(self) -> None:
        """All stages of a rank keep a micro-batch before its first backward pass runs there."""
        least = self.problem.held @ self.problem.sizes
        full = np.flatnonzero(least > self.problem.room)
        if len(full):
            reason = f"one micro-batch alone keeps more on rank {full[0]}"
            raise InvalidConfiguration(FIELD, reason)

    def best(self, seconds: float, progress: Progress | None) -> Synthesis:
        """The best order of all that were met."""
        rules = self._predicted(self.board.rules())
        fitting = [each for each in rules if each.fits]
        starts = [words for rule in rules if (words := self._words(rule.experiment))]
        problems, candidates, met = [*self.aim.problems(self.problem)], [*fitting], list[Found]()
        bound = lower_bound(problems[0])
        proves = is_available() and self.aim is not Aim.PERIOD
        seeking = seconds * (1 - SHARE_OF_PROOF if proves else 1) / len(problems)
        for left in reversed(range(ROUNDS)):
            within = [words for words in starts if problems[0].within(words)]
            met = [
                found
                for problem in problems
                for found in search(problem, within, seeking / (left + 1), progress=progress)
            ]
            found = self._predicted(self._experiment(each.words) for each in met)
            candidates += (each for each in found if each.fits)
            if all(each.fits for each in found) and found:
                break
            over = max((each.excess.clip(min=0) for each in found), key=np.max, default=0.0)
            problems = [problem.limited(problem.limits - over) for problem in problems]
        if not candidates and met and not found:
            raise InvalidConfiguration("p2p", "every order that was found deadlocks")
        if not candidates:
            raise InvalidConfiguration(FIELD, "no order was found that keeps to it")
        known = min((Found.of(problems[0], each.words) for each in met), key=_seconds, default=None)
        if proves and known and known.seconds > bound.seconds * (1 + TOLERANCE):
            better, bound = self._proven(problems[0], known, bound, seconds * SHARE_OF_PROOF)
            candidates += (each for each in better if each.fits)
        best = min(candidates, key=_seconds)
        rule = min(fitting, key=_seconds, default=None)
        return Synthesis(
            best.experiment,
            self.board.name,
            self.aim,
            best.seconds,
            bound,
            rule.experiment if rule else None,
            rule.seconds if rule else None,
        )

    def _proven(
        self, problem: Problem, known: Found, bound: Bound, seconds: float
    ) -> tuple[list[_Candidate], Bound]:
        """What CP-SAT makes of words that are known, and the higher of its bound and this one."""
        proven, words = solve(self.problem, known, seconds / 2)
        bound = max(bound, proven)
        if problem.within(words):
            known = Found.of(problem, words)
        better = improved(problem, known, seconds / 2, bound.seconds)
        return self._predicted([self._experiment(better.words)]), bound

    def _words(self, rule: Experiment) -> Words | None:
        return self.problem.words(rule.rule.orders(self.layout))

    def _experiment(self, words: Words) -> Experiment:
        ranks = tuple(tuple(order.tolist()) for order in self.problem.orders(words))
        home = Layout(self.layout.pp, self.layout.microbatches, placement=self.layout.placement)
        return self.board.experiment.changed(schedule=GivenOrders(TITLE, ranks, home))

    def _predicted(self, experiments: Iterable[Experiment]) -> list[_Candidate]:
        """Those that can run: orders may deadlock where transfers are in queues."""
        found = []
        for each in experiments:
            with suppress(Deadlock):
                found.append(_Candidate(self.aim.seconds(each), each, self.memory.excess(each)))
        return found


def _seconds(each: _Candidate | Found) -> float:
    return each.seconds

"""An experiment in, the same with the best order that was found out."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from bfpp.schedules import InvalidConfiguration, Layout
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.given_orders import GivenOrders
from bfpp.sim.engines import simulate
from bfpp.sim.experiment import Experiment
from bfpp.sim.synthesis.bounds import Bound, lower_bound
from bfpp.sim.synthesis.exact import improved, is_available, solve
from bfpp.sim.synthesis.memory import FIELD, Limits, Memory, memory_of
from bfpp.sim.synthesis.placements import Board, boards
from bfpp.sim.synthesis.problem import TOLERANCE, Problem, Words, priced
from bfpp.sim.synthesis.search import Found, Progress, replayed, search

ROUNDS = 3
"""How often memory limits are tightened where a prediction needs more than was reckoned."""

SHARE_OF_PROOF = 1 / 3
"""Of the time, for what CP-SAT proves where it is installed."""

TITLE = "synthesised"


@dataclass(frozen=True)
class Synthesis:
    """The experiment with the best order found, and how good that is.

    `bound` is what no order on these stages can beat; `rule` the best registered schedule
    that keeps to the memory limit, if any does, with its step time.
    """

    experiment: Experiment
    placement: str
    step_time: float
    bound: Bound
    rule: Experiment | None
    rule_step_time: float | None

    @property
    def gap(self) -> float:
        """By how much the step is longer than the bound, as a share of it."""
        return self.step_time / self.bound.seconds - 1


def synthesize(
    experiment: Experiment,
    *,
    memory_limit: Limits = None,
    memory_gb: Limits = None,
    placement: str = "contiguous",
    split: bool = True,
    seconds: float = 10.0,
    progress: Progress | None = None,
) -> Synthesis:
    """Seek the order with the least step time; the experiment's own schedule is not used.

    `memory_limit` is the most activations that each rank keeps, one number for all or one a
    rank, in micro-batches of a rank's work (`peak_microbatches`); with a model, `memory_gb` is
    what a rank may reserve, in 2^30 bytes. Backward passes may be in halves, if `split`. The
    search takes about so many `seconds`. Raises `InvalidConfiguration` where no order keeps to
    the limit.

    >>> from bfpp.sim.experiment import Experiment
    >>> found = synthesize(Experiment("1f1b", pp=2, microbatches=4), seconds=0.1)
    >>> found.step_time, found.bound.seconds
    (13.0, 13.0)
    """
    found, refused = [], None
    made = boards(experiment, placement, split=split)
    for board in made:
        try:
            sought = _Search(board, memory_of(board.experiment, memory_limit, memory_gb))
            found.append(sought.best(seconds / len(made), progress))
        except InvalidConfiguration as error:
            refused = error
    if refused and not found:
        raise refused
    rules = [each for each in found if each.rule_step_time is not None]
    best = min(found, key=lambda each: each.step_time)
    rule = min(rules, key=lambda each: each.rule_step_time or inf, default=best)
    bound = min(each.bound for each in found)
    return Synthesis(
        best.experiment, best.placement, best.step_time, bound, rule.rule, rule.rule_step_time
    )


class _Candidate(NamedTuple):
    """An order as the engine sees it, and by how much each rank is over its limit."""

    step_time: float
    experiment: Experiment
    excess: Numbers

    @property
    def fits(self) -> bool:
        """Whether it keeps to all limits."""
        return bool((self.excess <= 0).all())


class _Search:
    """On one board: from its rules, and from nothing."""

    def __init__(self, board: Board, memory: Memory) -> None:
        self.board, self.layout, self.memory = board, board.layout, memory
        experiment = board.experiment
        graph = experiment.graph()
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
        rules = [self._predicted(rule) for rule in self.board.rules()]
        fitting = [each for each in rules if each.fits]
        starts = [words for rule in rules if (words := self._words(rule.experiment))]
        problem, candidates, met = self.problem, [*fitting], list[Found]()
        proves = is_available()
        seeking = seconds * (1 - SHARE_OF_PROOF if proves else 1)
        for left in reversed(range(ROUNDS)):
            within = [words for words in starts if problem.within(words)]
            met = search(problem, within, seeking / (left + 1), progress=progress)
            found = [self._predicted(self._experiment(each.words)) for each in met]
            candidates += (each for each in found if each.fits)
            if all(each.fits for each in found) and found:
                break
            over = max((each.excess.clip(min=0) for each in found), key=np.max, default=0.0)
            problem = problem.limited(problem.limits - over)
        if not candidates:
            raise InvalidConfiguration(FIELD, "no order was found that keeps to it")
        bound = lower_bound(self.problem)
        if proves and met and met[0].seconds > bound.seconds * (1 + TOLERANCE):
            proven, words = solve(self.problem, met[0], seconds * SHARE_OF_PROOF / 2)
            bound = max(bound, proven)
            known = Found(replayed(problem, words), words) if problem.within(words) else met[0]
            better = improved(problem, known, seconds * SHARE_OF_PROOF / 2, bound.seconds)
            predicted = self._predicted(self._experiment(better.words))
            candidates += [predicted] if predicted.fits else []
        best = min(candidates, key=_step_time)
        rule = min(fitting, key=_step_time, default=None)
        return Synthesis(
            best.experiment,
            self.board.name,
            best.step_time,
            bound,
            rule.experiment if rule else None,
            rule.step_time if rule else None,
        )

    def _words(self, rule: Experiment) -> Words | None:
        return self.problem.words(rule.rule.orders(self.layout))

    def _experiment(self, words: Words) -> Experiment:
        ranks = tuple(tuple(order.tolist()) for order in self.problem.orders(words))
        home = Layout(self.layout.pp, self.layout.microbatches, placement=self.layout.placement)
        return self.board.experiment.changed(schedule=GivenOrders(TITLE, ranks, home))

    def _predicted(self, experiment: Experiment) -> _Candidate:
        graph = experiment.graph()
        timeline = simulate(graph, experiment.costs)
        return _Candidate(timeline.step_time, experiment, self.memory.excess(experiment))


def _step_time(candidate: _Candidate) -> float:
    return candidate.step_time

"""The best order on one board: from its rules, from repeated blocks, and from nothing."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bfpp.schedules import P2P, InvalidConfiguration, Layout
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.formats.orders_file import GivenOrders
from bfpp.schedules.lowering import Deadlock
from bfpp.schedules.lowering.posting import WrongPosts
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.synthesis.bounds import lower_bound
from bfpp.sim.synthesis.cp_sat.exact import is_available, proven_at_once, refined
from bfpp.sim.synthesis.deadline import Deadline
from bfpp.sim.synthesis.outcome import Synthesis
from bfpp.sim.synthesis.problem.memory_limits import FIELD, Memory
from bfpp.sim.synthesis.problem.objectives import Aim
from bfpp.sim.synthesis.problem.placements import Board
from bfpp.sim.synthesis.problem.problem import TOLERANCE, OrderingProblem, Words, priced
from bfpp.sim.synthesis.search.annealing import Progress, TimedWords, search
from bfpp.sim.synthesis.search.building_blocks import repeated_blocks

SHARES_OF_ROUNDS = (0.05, 0.1, 0.85, 0.2)
"""Of the search's time: after each round, limits are tightened where the predicted memory is more
than the search counted. The last round is for what still does not fit."""

SHARE_OF_FIRST_PROOF = 1 / 10
"""Of the time, for CP-SAT where it is installed, before anything else: it proves many small orders
of the quick heuristics optimal, and improves some."""

SHARE_OF_PROOF = 1 / 2
"""Of the rest, for CP-SAT after the search."""

TITLE = "synthesised"


class Candidate(NamedTuple):
    """An order by the engine: the objective's value, and the ranks' peaks and excess."""

    seconds: float
    experiment: Experiment
    peaks: Numbers
    excess: Numbers

    @property
    def fits(self) -> bool:
        """True if it keeps to all limits."""
        return bool((self.excess <= 0).all())


def problem_of(board: Board, memory: Memory) -> OrderingProblem:
    """The problem of a board: its passes, priced by its experiment, and its limits."""
    experiment = board.experiment
    experiment.communication.require()
    # Queues change no price, and orders that are only priced may deadlock in them.
    graph = experiment.changed(p2p=P2P.CHANNELS, eager=False).graph()
    return OrderingProblem(
        board.layout,
        board.operations,
        *priced(graph, experiment.costs.costs(graph), board.operations),
        memory.sizes,
        memory.limits,
    )


@dataclass(frozen=True, eq=False)
class BoardSearch:
    """The search on a board.

    Raises `InvalidConfiguration` if one micro-batch does not fit, or passes take no time.
    """

    board: Board
    memory: Memory
    aim: Aim
    problem: OrderingProblem

    def __post_init__(self) -> None:
        if not self.problem.seconds.any():
            raise InvalidConfiguration("forward", "no order is better: all passes take 0 s")
        full = np.flatnonzero(~self.problem.has_room)
        if len(full):
            rank = int(full[0])
            alone = self.memory.alone(
                rank, float(self.problem.sizes[self.problem.held[rank]].sum())
            )
            reason = f"one micro-batch alone keeps more on rank {rank}: {alone} {self.memory.unit}"
            raise InvalidConfiguration(FIELD, reason)

    def limited(self, memory: Memory) -> BoardSearch:
        """The same within other limits; its rules are not predicted again."""
        limited = replace(self, memory=memory, problem=self.problem.limited(memory.limits))
        rules = [each._replace(excess=memory.excess(each.peaks)) for each in self.rules]
        vars(limited)["rules"] = rules
        return limited

    @cached_property
    def rules(self) -> list[Candidate]:
        """The registered schedules that run on this board."""
        return self._predicted(self.board.rules())

    @property
    def fitting_rules(self) -> list[Candidate]:
        """Those that keep to the limits."""
        return [each for each in self.rules if each.fits]

    def best(
        self, seconds: float, progress: Progress | None = None, enough: float = 0.0
    ) -> Synthesis:
        """The best order, or the first that takes no longer than `enough`."""
        fitting = self.fitting_rules
        starts = [words for rule in self.rules if (words := self._words(rule.experiment))]
        problems, candidates = [*self.aim.problems(self.problem)], [*fitting]
        met: list[TimedWords] = []
        starts += repeated_blocks(problems[0])
        deadline, proves = Deadline(seconds), is_available() and self.aim is not Aim.PERIOD
        if proves:
            bound, proven = proven_at_once(
                self.problem, starts, enough, seconds * SHARE_OF_FIRST_PROOF
            )
            starts += proven
        else:
            bound = lower_bound(problems[0])
        # Nothing is sought where no order is fast enough.
        seconds = 0.0 if 0 < enough * (1 + TOLERANCE) < bound.seconds else deadline.left
        if self.aim is not Aim.ROBUSTNESS:
            enough = max(enough, bound.seconds)
        seeking = seconds * (1 - SHARE_OF_PROOF if proves else 1) / len(problems)
        for share in SHARES_OF_ROUNDS:
            within = [words for words in starts if problems[0].within(words)]
            met = [
                each
                for problem in problems
                for each in search(problem, within, seeking * share, enough, progress)
            ]
            orders = self.predicted(each.words for each in met)
            candidates += (each for each in orders if each.fits)
            starts += (each.words for each in met)
            if orders and all(each.fits for each in orders):
                if share == max(SHARES_OF_ROUNDS) or orders[0].seconds <= enough * (1 + TOLERANCE):
                    break
                continue
            over = max((each.excess.clip(min=0) for each in orders), key=np.max, default=0.0)
            problems = [problem.limited(problem.limits - over) for problem in problems]
            starts += repeated_blocks(problems[0])
        if not candidates:
            raise _no_order(deadlocked=bool(met) and not orders)
        known = min(
            (TimedWords.of(problems[0], each.words) for each in met), key=_seconds, default=None
        )
        is_open = known and known.seconds > max(bound.seconds, enough) * (1 + TOLERANCE)
        if proves and seconds and known and is_open:
            better, least = refined(self.problem, problems[0], known, seconds * SHARE_OF_PROOF)
            bound = max(bound, least)
            candidates += (each for each in self.predicted([better.words]) if each.fits)
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

    def predicted(self, orders: Iterable[Words]) -> list[Candidate]:
        """Candidates of these words, of those that can run."""
        return self._predicted(map(self._experiment, orders))

    def _words(self, rule: Experiment) -> Words | None:
        return self.problem.words(rule.rule.orders(self.board.layout))

    def _experiment(self, words: Words) -> Experiment:
        ranks = tuple(tuple(order.tolist()) for order in self.problem.orders(words))
        layout = self.board.layout
        home = Layout(layout.pp, layout.microbatches, placement=layout.placement)
        return self.board.experiment.changed(schedule=GivenOrders(TITLE, ranks, home))

    def _predicted(self, experiments: Iterable[Experiment]) -> list[Candidate]:
        """Those that can run: as transfers are posted, orders may deadlock or exchange messages."""
        candidates = []
        for each in experiments:
            with suppress(Deadlock, WrongPosts):
                seconds, peaks = self.aim.seconds(each), self.memory.peaks(each)
                candidates.append(Candidate(seconds, each, peaks, self.memory.excess(peaks)))
        return candidates


def _no_order(*, deadlocked: bool) -> InvalidConfiguration:
    """The error where no order can run, or none keeps to the limits."""
    if deadlocked:
        return InvalidConfiguration("p2p", "every candidate order deadlocks, or exchanges messages")
    return InvalidConfiguration(FIELD, "no order was found that keeps to it")


def _seconds(each: Candidate | TimedWords) -> float:
    return each.seconds

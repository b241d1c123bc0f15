"""Order, layers of stages and recomputation together: a descent over choices, then the order.

A choice is rated by the best words that are known so far, with its costs, or by those that are
found at once: by their step, their longest span where the period is sought, or their mean step over
costs with jitter. The descent stops where no neighbour is better; then words are improved, and it
goes on with them. Each neighbour is then searched for longer: where memory is short, what is found
at once may be far from the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from statistics import mean
from typing import NamedTuple

import numpy as np

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import Seconds
from bfpp.schedules.recomputation import NO_RECOMPUTATION
from bfpp.sim.experiment import Experiment
from bfpp.sim.synthesis.bounds import Bound, lower_bound
from bfpp.sim.synthesis.choices import CHOICES
from bfpp.sim.synthesis.deadline import Deadline
from bfpp.sim.synthesis.joint_bound import bound_of_any_cut
from bfpp.sim.synthesis.memory import FIELD, Counted
from bfpp.sim.synthesis.ordering import BoardSearch, problem_of
from bfpp.sim.synthesis.outcome import Synthesis, all_found, best_of
from bfpp.sim.synthesis.placements import Board
from bfpp.sim.synthesis.problem import TOLERANCE, Words
from bfpp.sim.synthesis.search import Progress, search

SHARE_OF_CHOICES = 1 / 2
"""Of the time, for the descent; the rest is for the order of what is chosen."""

SHARE_OF_GIVEN = 1 / 4
"""Of the rest, for the order without a choice."""

SHARES_OF_RATINGS = (0.0, 0.01, 0.02)
"""Of the descent's time, for each rating: more, each time that no neighbour was better."""

WORK = 1e-3
"""What a second of the mean rank's work is worth, in seconds of the step: of choices that are as
fast, the one with less work leaves more room to the order."""

SearchOn = Callable[[Board], BoardSearch]


class Chosen(NamedTuple):
    """A choice with its rating (less is better), the search on its board, and its best words."""

    merit: float
    search: BoardSearch
    words: Words

    @property
    def experiment(self) -> Experiment:
        """With these choices, and no order."""
        return self.search.board.experiment

    @property
    def load(self) -> Seconds:
        """By stage: the seconds of its rank."""
        problem = self.search.problem
        load: Seconds = (problem.held @ problem.seconds.sum(axis=0))[problem.layout.rank_of_stage]
        return load


def joint(
    on: SearchOn, board: Board, names: Sequence[str], seconds: float, progress: Progress | None
) -> Synthesis:
    """The best order with the best choices; `on` makes the search on a board.

    The board as it is given competes, with all rules.
    """
    chosen = _descended(on, board, names, seconds * SHARE_OF_CHOICES)
    left = seconds * (1 - SHARE_OF_CHOICES)
    shares = [(chosen.experiment, 1 - SHARE_OF_GIVEN), (board.experiment, SHARE_OF_GIVEN)]
    found = all_found(
        lambda each: on(board.changed(each[0])).best(left * each[1], progress), shares
    )
    return replace(best_of(found), bound=_bound(chosen, names))


def _bound(chosen: Chosen, names: Sequence[str]) -> Bound:
    """Whatever is chosen: passes are shortest where nothing is recomputed, and memory unlimited."""
    experiment, problem = chosen.experiment, chosen.search.problem
    policy = experiment.require_physical().recomputation
    if "recompute" in names or policy.layers is not None:
        experiment = experiment.changed(recompute=str(NO_RECOMPUTATION))
    unlimited = Counted(problem.sizes, np.full(problem.layout.pp, np.inf))
    quickest = problem_of(chosen.search.board.changed(experiment), unlimited)
    problem = next(chosen.search.aim.problems(quickest))
    if "cut" not in names:
        return lower_bound(problem)
    sharding = experiment.communication.sharding
    return bound_of_any_cut(experiment.require_physical(), problem, sharding)


def _descended(on: SearchOn, board: Board, names: Sequence[str], seconds: float) -> Chosen:
    """The best choice that is met in that time."""
    deadline = Deadline(seconds)
    beginnings = [board.experiment]
    for name in names:
        beginnings += [other for each in beginnings for other in CHOICES[name].beginnings(each)]
    choices = all_found(lambda each: _rated(on(board.changed(each)), [], 0.0), beginnings)
    best = min(choices, key=_merit)
    for share in SHARES_OF_RATINGS:
        best = _lowest(on, best, names, deadline, share * seconds)
        if not (left := deadline.left):
            break
        problem = next(best.search.aim.problems(best.search.problem))
        better = search(problem, [best.words], left / len(SHARES_OF_RATINGS))[0]
        best = _rated(best.search, better.words, 0.0)
    return best


def _lowest(
    on: SearchOn, best: Chosen, names: Sequence[str], deadline: Deadline, seconds: float
) -> Chosen:
    """From neighbour to better neighbour, until none is; `seconds` are for each."""
    seen = set[tuple[object, object]]()
    neighbours = _neighbours(best, names)
    while deadline.left and (experiment := next(neighbours, None)):
        if (said := (experiment.cut, experiment.recompute)) in seen:
            continue
        seen.add(said)
        with suppress(InvalidConfiguration):
            found = _rated(on(best.search.board.changed(experiment)), best.words, seconds)
            if found.merit < best.merit * (1 - TOLERANCE):
                best, neighbours = found, _neighbours(found, names)
    return best


def _neighbours(chosen: Chosen, names: Sequence[str]) -> Iterator[Experiment]:
    return chain.from_iterable(
        CHOICES[name].neighbours(chosen.experiment, chosen.load) for name in names
    )


def _rated(searched: BoardSearch, words: Words, seconds: float) -> Chosen:
    """With the words, if these keep to the limits, or others that are found in that time."""
    problem = searched.problem
    starts = [words] if words and problem.within(words) else []
    problems = [*searched.aim.problems(problem)]
    found = [search(each, starts, seconds / len(problems)) for each in problems]
    if not all(found):
        raise InvalidConfiguration(FIELD, "no order was found that keeps to it")
    taken = mean(best.seconds for best, *_ in found)
    work = problem.seconds.sum() * problem.microbatches / problem.layout.pp
    return Chosen(taken + WORK * float(work), searched, found[0][0].words)


def _merit(chosen: Chosen) -> float:
    return chosen.merit

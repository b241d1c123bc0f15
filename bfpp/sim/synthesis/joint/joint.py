"""Order, layers of stages and recomputation together: a descent over choices, then the order.

A choice is rated by the best words that are known so far, with its costs, or by those of a
quick search: by their step, their longest span where the period is sought, or their mean step over
costs with jitter. The descent stops where no neighbour is better; then words are improved, and it
goes on with them. Each neighbour is then searched for longer: where memory is short, the quick
search may end far from the best.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import mean

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.synthesis.bounds import Bound, lower_bound
from bfpp.sim.synthesis.deadline import Deadline
from bfpp.sim.synthesis.joint.choices import CHOICES
from bfpp.sim.synthesis.joint.descent import Choosing, Chosen, quickest
from bfpp.sim.synthesis.joint.joint_bound import bound_of_any_cut
from bfpp.sim.synthesis.ordering import BoardSearch
from bfpp.sim.synthesis.outcome import Synthesis, all_feasible, best_of
from bfpp.sim.synthesis.problem.memory_limits import FIELD
from bfpp.sim.synthesis.problem.placements import Board
from bfpp.sim.synthesis.problem.problem import Words
from bfpp.sim.synthesis.search.annealing import Progress, search

SHARE_OF_CHOICES = 1 / 2
"""Of the time, for the descent; the rest is for the order with the choices."""

SHARE_OF_GIVEN = 1 / 4
"""Of the rest, for the order without a choice."""

SHARES_OF_RATINGS = (0.0, 0.01, 0.02)
"""Of the descent's time, for each rating: more, each time that no neighbour was better."""

WORK = 1e-3
"""Worth of a second of the mean rank's work, in seconds of the step: of choices that are as
fast, the one with less work leaves more room to the order."""


def joint(choosing: Choosing, board: Board, seconds: float, progress: Progress | None) -> Synthesis:
    """The best order with the best choices.

    The board as it is given competes, with all rules.
    """
    chosen = _descended(choosing, board, seconds * SHARE_OF_CHOICES)
    left = seconds * (1 - SHARE_OF_CHOICES)
    shares = [(chosen.experiment, 1 - SHARE_OF_GIVEN), (board.experiment, SHARE_OF_GIVEN)]
    results = all_feasible(
        lambda each: choosing.on(board.changed(each[0])).best(left * each[1], progress), shares
    )
    return replace(best_of(results), bound=_bound(choosing, chosen.search))


def _bound(choosing: Choosing, search: BoardSearch) -> Bound:
    """The lower bound over all choices."""
    quick = quickest(choosing, search)
    problem = next(quick.aim.problems(quick.problem))
    if "cut" not in choosing.names:
        return lower_bound(problem)
    experiment = quick.board.experiment
    sharding = experiment.communication.sharding
    return bound_of_any_cut(experiment.require_physical(), problem, sharding)


def _descended(choosing: Choosing, board: Board, seconds: float) -> Chosen:
    """The best choice that is met in that time."""
    deadline = Deadline(seconds)
    beginnings = [board.experiment]
    for name in choosing.names:
        beginnings += [other for each in beginnings for other in CHOICES[name].beginnings(each)]
    choices = all_feasible(lambda each: _rated(choosing.on(board.changed(each)), []), beginnings)
    best = min(choices, key=lambda each: each.merit)
    for share in SHARES_OF_RATINGS:
        rated = partial(_rated, seconds=share * seconds)
        best = choosing.lowest(rated, best, deadline)
        if not (left := deadline.left):
            break
        problem = next(best.search.aim.problems(best.search.problem))
        better = search(problem, [best.words], left / len(SHARES_OF_RATINGS))[0]
        best = _rated(best.search, better.words)
    return best


def _rated(searched: BoardSearch, words: Words, seconds: float = 0.0) -> Chosen:
    """With the words, if these keep to the limits, or others of a search of that time."""
    problem = searched.problem
    starts = [words] if words and problem.within(words) else []
    problems = [*searched.aim.problems(problem)]
    results = [search(each, starts, seconds / len(problems)) for each in problems]
    if not all(results):
        raise InvalidConfiguration(FIELD, "no order was found that keeps to it")
    taken = mean(best.seconds for best, *_ in results)
    work = problem.seconds.sum() * problem.microbatches / problem.layout.pp
    load = (problem.held @ problem.seconds.sum(axis=0))[problem.layout.rank_of_stage]
    return Chosen((taken + WORK * float(work),), load, searched, results[0][0].words)

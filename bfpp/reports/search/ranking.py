"""The ranking of a search: what is shown, why the best wins, and the answer."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bfpp.api.searching import decided, values_of
from bfpp.api.workers import Workers
from bfpp.launchers.limits import launches_of
from bfpp.options.search import parse_fixed
from bfpp.options.search_file import problem_alone, searched_from
from bfpp.reports.search.gains import gains_of
from bfpp.reports.search.summary import Answer
from bfpp.reports.search.table import SHOWN, rows_of
from bfpp.schedules import Configuration
from bfpp.sim.experiment.experiment import Experiment, experiment_of
from bfpp.sim.search.decision import Decision, Rival, compared, surer_ties_first
from bfpp.sim.search.outcomes import Outcome, Outcomes
from bfpp.sim.search.problem import Problem
from bfpp.sim.search.ranking import (
    faster_than,
    of_first_case,
    pareto,
    ranked,
    safer_than,
    without_duplicates,
)
from bfpp.traces.timeline.units import GIGABYTE

ALL = "all"
"""The number of best configurations of a search that leaves out only what cannot fit."""


class Ranking(NamedTuple):
    """All outcomes; those that fit, best first, also without duplicates; and why the best wins.

    `given` is the experiment that the search begins from, if there is one.
    """

    outcomes: Outcomes
    best_first: Outcomes
    once: Outcomes
    shown: Sequence[Outcome]
    front: Outcomes
    decision: Decision | None
    answer: Answer | None
    given: Rival | None

    @property
    def ties(self) -> Mapping[Configuration, bool]:
        """For each configuration shown but the best, whether it ties with that."""
        return self.decision.ties if self.decision else {}

    def interval(self, outcome: Outcome) -> dict[str, float | None]:
        """The ends of the interval of an outcome's step time, if it is shown."""
        found = self.decision and self.decision.intervals.get(outcome.configuration)
        ends = (found.low, found.high) if found else (None, None)
        return dict(zip(("step_time_low", "step_time_high"), ends, strict=True))

    @property
    def merged(self) -> int:
        """Configurations that are the same as others."""
        return len(self.best_first) - len(self.once)


def ranking_of(
    problem: Problem, outcomes: Outcomes, options: argparse.Namespace, workers: Workers
) -> Ranking:
    """The ranking of what was simulated."""
    best_first = ranked(outcomes, problem.objective, problem.risk)
    best_first = surer_ties_first(problem, best_first)
    front = pareto(ranked(outcomes))
    once = without_duplicates(best_first)
    shown = rows_of(once, SHOWN if options.top in (None, ALL) else options.top)
    choice = decided(problem, once, shown, workers)
    answer = choice and _answer(problem, choice, once, options, workers)
    given = None
    if choice and (experiment := searched_from(options)):
        own = problem_alone(problem, experiment)
        given = compared(problem, choice.winner, own, experiment.configuration)
    return Ranking(outcomes, best_first, once, shown, front, choice, answer, given)


def _answer(
    problem: Problem,
    choice: Decision,
    once: Outcomes,
    options: argparse.Namespace,
    workers: Workers,
) -> Answer:
    experiment = experiment_of_outcome(choice.winner, problem, options)
    alike = of_first_case(once)
    return Answer(
        choice,
        problem.cluster.device.usable_memory / GIGABYTE,
        experiment,
        safer_than(choice.winner, alike),
        faster_than(choice.winner, alike),
        workers.nearest.submit(gains_of, experiment).result(),
        launches_of(experiment),
    )


def experiment_of_outcome(
    best: Outcome, problem: Problem, options: argparse.Namespace
) -> Experiment:
    """The experiment that predicts a configuration as the search did."""
    named = ("model", "seq_length", "cluster", "constants")
    said = {name: each for name in named if (each := getattr(options, name)) is not None}
    said |= parse_fixed(options.fix, options.schedule or ()).of_model
    schedule = best.configuration.schedule
    given = ((name, best.record.get(name)) for name in schedule.parameters)
    own = {name: value for name, value in given if value is not None}
    values = values_of(best, dict(problem.fixed))
    return experiment_of({"schedule": best.record["schedule"], **own, **values, **said})

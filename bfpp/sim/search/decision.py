"""Why one configuration is better than another: where the time of a step goes, part by part.

The parts of a mean rank's step sum to its step time:

- the model's operations at the device's peak, and what kernels and clocks take beyond that;
- what is computed again;
- communication that compute waits for, inside passes and between them;
- the bubble: waiting for other ranks' compute; and the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import exp, sqrt
from typing import Any, NamedTuple

import numpy as np

from bfpp.schedules import Configuration, Layout
from bfpp.schedules.settings.recomputation import NO_RECOMPUTATION
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.units.seconds import UnitSeconds, unit_seconds
from bfpp.sim.experiment.residuals import ANY, shipped_residuals
from bfpp.sim.experiment.uncertainty import (
    FASTER,
    SLOWER,
    Doubt,
    Interval,
    difference_spread,
    doubt_of,
    interval_by,
)
from bfpp.sim.presets.numbers import QUANTILE
from bfpp.sim.search.evaluation import evaluation_of
from bfpp.sim.search.objectives import Objective
from bfpp.sim.search.outcomes import Outcome, Outcomes
from bfpp.sim.search.problem import Problem
from bfpp.sim.search.ranking import in_first_case, of_first_case
from bfpp.sim.search.space import CostSetting, Numbered
from bfpp.traces.explain.causes import Causes
from bfpp.traces.explain.looks import Cause
from bfpp.traces.timeline.timeline import Timeline

PEAK, KERNELS, RECOMPUTATION = "operations at the peak", "kernel efficiency", "recomputation"
COMMUNICATION, BUBBLE, OPTIMIZER = "exposed communication", "bubble", "optimizer"

WAITED_FOR = {
    Cause.TRANSFER: COMMUNICATION,
    Cause.GATHER: COMMUNICATION,
    Cause.REDUCTION: COMMUNICATION,
    Cause.TENSOR: COMMUNICATION,
    Cause.CONTEXT: COMMUNICATION,
    Cause.EXPERT: COMMUNICATION,
    Cause.HOST: COMMUNICATION,
    Cause.TIED: COMMUNICATION,
    Cause.BUFFER: COMMUNICATION,
    Cause.OPTIMIZER: OPTIMIZER,
}
"""Parts that causes of idle time are counted in; the others are the bubble."""

RIVALS = 3
"""Number of other kinds that a winner is compared with: the best ones."""

WITHOUT_PIPELINE = "no pipeline"

BY_SPEED = (Objective.THROUGHPUT, Objective.COST)
"""Objectives by which predictions of step times tell configurations apart."""


def kind_of(configuration: Configuration) -> str:
    """Kind of method of a configuration: its schedule, if there is a pipeline."""
    kind = configuration.schedule.reference if configuration.degrees.pp > 1 else WITHOUT_PIPELINE
    return f"{kind} with offload" if configuration.communication.offload else kind


def parts_of_step(timeline: Timeline, physical: PhysicalCosts) -> dict[str, float]:
    """The seconds of a mean rank's step, part by part."""
    layout = timeline.graph.layout
    layers, kept = physical.layers(layout), replace(physical, recompute=NO_RECOMPUTATION)
    whole = _of_mean_rank(physical.unit_seconds(layout), layout)
    once = _of_mean_rank(unit_seconds(kept, layers), layout)
    alone = _of_mean_rank(unit_seconds(kept, layers, communicates=False), layout)
    device, precision = physical.cluster.device, physical.execution.precision
    peak = physical.model_flops(layout) / device.peak_of(precision)
    parts = dict.fromkeys((PEAK, KERNELS, RECOMPUTATION, COMMUNICATION, BUBBLE, OPTIMIZER), 0.0)
    mean = Causes(timeline).mean_rank
    hidden = max(whole - mean["compute"], 0.0)  # of exchanges, in fused blocks
    parts[PEAK], parts[RECOMPUTATION] = peak, whole - once
    parts[COMMUNICATION] = once - alone - hidden
    # Including what power limits and communication in parallel with compute add to passes.
    parts[KERNELS] = mean["compute"] - sum(parts.values())
    for cause in Cause:
        parts[WAITED_FOR.get(cause, BUBBLE)] += mean[cause]
    return parts


def _of_mean_rank(units: UnitSeconds, layout: Layout) -> float:
    passes = units.forward + units.backward_input + units.backward_weight
    return float(passes.sum()) * layout.whole_microbatches / layout.pp


class Account(NamedTuple):
    """Breakdown of a predicted step time by part, with its uncertainty."""

    parts: Mapping[str, float]
    doubt: Doubt


def account_of(problem: Problem, outcome: Outcome) -> Account:
    """The account of a prediction.

    Workers run it, and need not import the modules of a command for it.
    """
    known, configuration = evaluation_of(problem), outcome.configuration
    physical = known.physical(CostSetting.of(configuration))
    parts = parts_of_step(known.timeline(configuration), physical)
    return Account(parts, doubt_about(problem, outcome))


def doubt_about(problem: Problem, outcome: Outcome) -> Doubt:
    """Uncertainty of a prediction, not broken down by part."""
    known, configuration = evaluation_of(problem), outcome.configuration
    physical = known.physical(CostSetting.of(configuration))
    return doubt_of(known.predicted_step(configuration), physical)


class Distance(NamedTuple):
    """Slowdown of another configuration against the winner, as a share, with its interval.

    In 80 % of cases the predicted ratio of the two is off by a share of `margin` at most.
    """

    share: float
    margin: float

    @property
    def ties(self) -> bool:
        """True if the two are equally fast within the prediction's error."""
        return abs(self.share) < self.margin


def distance(winner: Outcome, other: Outcome, doubt: Doubt, its: Doubt) -> Distance:
    """Slowdown of another configuration against the winner, from the uncertainties of both."""
    ratio = winner.samples_per_second / other.samples_per_second
    return Distance(ratio - 1, exp(difference_spread(its, doubt, _end(winner, other))) - 1)


def _end(winner: Outcome, other: Outcome) -> float:
    """The end of the interval of their ratio that lies towards the two being equally fast."""
    return FASTER if winner.samples_per_second >= other.samples_per_second else SLOWER


class Rival(NamedTuple):
    """The best of another kind, and by how much it is slower than the winner, part by part.

    In seconds, for as many samples as a step of the winner has.
    """

    outcome: Outcome
    longer: Mapping[str, float]
    distance: Distance


class Decision(NamedTuple):
    """The winner, where the time of its step goes, the best of each other kind, and all ties.

    `ties` says of each outcome that is shown, but for the winner, whether it ties with that;
    `intervals` has the step time of each.
    """

    winner: Outcome
    parts: Mapping[str, float]
    rivals: list[Rival]
    ties: Mapping[Configuration, bool]
    intervals: Mapping[Configuration, Interval]


def decision(
    problem: Problem,
    best_first: Outcomes,
    shown: Sequence[Outcome],
    all_of: Callable[[Sequence[Callable[[], Any]]], Sequence[Any]],
) -> Decision | None:
    """The reason why the first of a ranking wins, if any, and those `shown` that tie with it.

    `all_of` calls functions, perhaps in parallel as they take long, and returns their results.
    """
    if not len(best_first):
        return None
    winner, *others = contenders(of_first_case(best_first))
    further = [each for each in shown if each not in (winner, *others)]
    results = all_of(
        [
            *(partial(account_of, problem, each) for each in [winner, *others]),
            *(partial(doubt_about, problem, each) for each in further),
        ]
    )
    accounts: Sequence[Account] = results[: 1 + len(others)]
    every = [winner, *others, *further]
    own = [*(account.doubt for account in accounts), *results[len(accounts) :]]
    doubts = {each.configuration: its for each, its in zip(every, own, strict=True)}
    account, *theirs = accounts
    rivals = [
        _rival(winner, account, other, its) for other, its in zip(others, theirs, strict=True)
    ]
    ties = {
        each.configuration: distance(winner, each, account.doubt, doubts[each.configuration]).ties
        for each in shown
        if each != winner
    }
    intervals = {
        each.configuration: _interval(problem, each, doubts[each.configuration]) for each in every
    }
    return Decision(winner, account.parts, rivals, ties, intervals)


def _interval(problem: Problem, outcome: Outcome, doubt: Doubt) -> Interval:
    configuration = outcome.configuration
    physical = evaluation_of(problem).physical(CostSetting.of(configuration))
    return interval_by(doubt, outcome.step_time, physical, configuration.layout)


def _rival(winner: Outcome, account: Account, other: Outcome, its: Account) -> Rival:
    scale = winner.configuration.batch / other.configuration.batch
    longer = {name: scale * each - account.parts[name] for name, each in its.parts.items()}
    return Rival(other, longer, distance(winner, other, account.doubt, its.doubt))


def compared(problem: Problem, winner: Outcome, own: Problem, given: Configuration) -> Rival:
    """A configuration of its `own` problem against the winner of another one."""
    other = evaluation_of(own).outcome(given)
    return _rival(winner, account_of(problem, winner), other, account_of(own, other))


SURENESS_DIGITS = 2
"""Digits of a probability to fit by which one configuration is surer than another."""


def surer_ties_first(problem: Problem, best_first: Outcomes) -> Outcomes:
    """A ranking that begins with what fits most surely of all that tie with its first.

    Ties are those by what constants leave of any two runs on one cluster, on as many devices and
    with one batch. Where any risk is taken, nothing goes before the fastest.
    """
    if problem.objective not in BY_SPEED or problem.risk == 1 or not len(best_first):
        return best_first
    sure = best_first.fits_probability.round(SURENESS_DIGITS)
    margin = exp(QUANTILE * sqrt(2) * shipped_residuals().rival[ANY])
    tie = best_first.samples_per_second * margin > best_first.samples_per_second[0]
    ties = np.flatnonzero(tie & in_first_case(best_first) & (sure > sure[0]))
    ahead = ties[np.argsort(-sure[ties], kind="stable")]
    others = np.setdiff1d(np.arange(len(best_first)), ahead)
    return best_first.take(np.concatenate([ahead, others]))


def contenders(best_first: Outcomes) -> list[Outcome]:
    """Of a ranking, the winner and the best of each of some other kinds."""
    space, kinds = best_first.space, Numbered[str]()
    graphs = list(zip(space.pipeline.tolist(), space.communication.tolist(), strict=True))
    kind_of_graph = {
        graph: kinds.number(kind_of(space.tables.step(*graph))) for graph in dict.fromkeys(graphs)
    }
    kind = np.array([kind_of_graph[graph] for graph in graphs])
    _, first = np.unique(kind, return_index=True)
    return [best_first[place] for place in np.sort(first)[: 1 + RIVALS].tolist()]

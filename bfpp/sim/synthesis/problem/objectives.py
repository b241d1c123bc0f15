"""Objectives: the step time, the period, the step time under jitter, or memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

import numpy as np

from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.search.objectives import USUAL_JITTER, robust_step_time
from bfpp.sim.synthesis.problem.problem import OrderingProblem
from bfpp.traces.timeline.period import period

DRAWS = 3
"""Draws of costs with jitter that orders are searched with, in addition to the usual ones."""


class Aim(StrEnum):
    """Objective to minimise.

    - Step: the time of one step.
    - Period: the time from step to step, where ranks begin the next step without a barrier.
    - Robustness: the quantile of the step time over costs with jitter, as in `bfpp search`.
    - Memory: the peak of the fullest rank, within a step time.
    """

    STEP = "step"
    PERIOD = "period"
    ROBUSTNESS = "robustness"
    MEMORY = "memory"

    def seconds(self, experiment: Experiment) -> float:
        """The objective of an experiment with an order; for memory, its step time."""
        graph = experiment.graph()
        if self is Aim.ROBUSTNESS:
            return robust_step_time(graph, experiment.costs.costs(graph), USUAL_JITTER)
        timeline = simulate(graph, experiment.costs)
        return period(timeline) if self is Aim.PERIOD else timeline.step_time

    def problems(self, problem: OrderingProblem) -> Iterator[OrderingProblem]:
        """The problems to search for this objective; candidate orders are compared by it.

        The period is at least each rank's span, from its first pass to its last, and the longest
        span is a period that every rank can keep. For robustness, costs with jitter are drawn, and
        searched in addition to the usual ones.
        """
        yield replace(problem, spans=self is Aim.PERIOD)
        if self is Aim.ROBUSTNESS:
            generator = np.random.default_rng(USUAL_JITTER.seed)
            for _ in range(DRAWS):
                of_ranks = generator.standard_normal(problem.layout.pp)
                factor = np.exp(USUAL_JITTER.deviation * of_ranks[problem.layout.rank_of_stage])
                yield replace(problem, seconds=problem.seconds * factor)

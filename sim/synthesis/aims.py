"""What an order is to minimise: the step, the period, the step under jitter, or memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum

import numpy as np

from bfpp.sim.engines import simulate
from bfpp.sim.experiment import Experiment
from bfpp.sim.objectives import USUAL_JITTER, robust_step_time
from bfpp.sim.synthesis.problem import Problem
from bfpp.traces.period import period

DRAWS = 3
"""Costs with jitter that orders are searched with, in addition to the usual ones."""


class Aim(StrEnum):
    """What to minimise.

    The step; the period, from step to step where many follow one another; the quantile of the
    step over costs with jitter, the same as in searches; or the memory of the fullest rank, in
    steps that are fast enough.
    """

    STEP = "step"
    PERIOD = "period"
    ROBUSTNESS = "robustness"
    MEMORY = "memory"

    def seconds(self, experiment: Experiment) -> float:
        """Of an experiment with an order; where memory is sought, those of the step."""
        graph = experiment.graph()
        if self is Aim.ROBUSTNESS:
            return robust_step_time(graph, experiment.costs.costs(graph), USUAL_JITTER)
        timeline = simulate(graph, experiment.costs)
        return period(timeline) if self is Aim.PERIOD else timeline.step_time

    def problems(self, problem: Problem) -> Iterator[Problem]:
        """The problems whose orders are compared by what is sought.

        No rank has a period shorter than its own span, from its first pass to its last, and with
        the longest span every rank can begin its next step. What is short under jitter is among
        orders that are short for costs with some.
        """
        yield replace(problem, spans=self is Aim.PERIOD)
        if self is Aim.ROBUSTNESS:
            generator = np.random.default_rng(USUAL_JITTER.seed)
            for _ in range(DRAWS):
                of_ranks = generator.standard_normal(problem.layout.pp)
                factor = np.exp(USUAL_JITTER.deviation * of_ranks[problem.layout.rank_of_stage])
                yield replace(problem, seconds=problem.seconds * factor)

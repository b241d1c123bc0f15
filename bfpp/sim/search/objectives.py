"""Objectives of a search: throughput, memory, cost, or robustness to jitter."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from bfpp.schedules import TaskGraph
from bfpp.sim.engines.compiled_engine import step_times
from bfpp.sim.engines.cost_model import Costs


class Objective(StrEnum):
    """Objective of a search.

    Most samples a second, least memory on the fullest rank, fewest GPU-hours a token (and least
    money at one price), or the least quantile of the step time over costs with jitter.
    """

    THROUGHPUT = "throughput"
    MEMORY = "memory"
    COST = "cost"
    ROBUSTNESS = "robustness"


class Jitter(NamedTuple):
    """Random variation of costs: factors whose logarithm has this `deviation`.

    One factor for each rank, whose device is slower or faster for the whole step, and another for
    each task. The `quantile` is taken over `draws` of a generator with that `seed`.
    """

    deviation: float = 0.05
    quantile: float = 0.9
    draws: int = 32
    seed: int = 0


USUAL_JITTER = Jitter()
"""The default, assumed: ranks and tasks vary by five per cent each."""


def robust_step_time(graph: TaskGraph, costs: Costs, jitter: Jitter) -> float:
    """The quantile of the step time over costs with jitter, in seconds.

    Each draw is replayed by the compiled engine; a graph always has the same ones.
    """
    generator = np.random.default_rng(jitter.seed)

    def drawn() -> Costs:
        of_ranks = generator.standard_normal(graph.layout.pp)
        of_tasks = generator.standard_normal(len(graph))
        factor = np.exp(jitter.deviation * (of_ranks[graph.rank] + of_tasks))
        return replace(costs, seconds=costs.seconds * factor, bytes=costs.bytes * factor)

    times = step_times(graph, [drawn() for _ in range(jitter.draws)])
    return float(np.quantile(times, jitter.quantile))

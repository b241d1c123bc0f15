"""A timeline as costs, for what-if questions about a measured step.

Each task takes what it took, and how late it started after it could have: so the replay ends when
the timeline does, and a faster task ends the step earlier as far as the others allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.sim.engines.compiled_engine import step_time
from bfpp.sim.engines.cost_model import Costs, fixed_costs
from bfpp.traces.explain.causes import Causes


@dataclass(frozen=True)
class AsItRan:
    """The cost model of a timeline's own graph."""

    causes: Causes

    def costs(self, graph: TaskGraph) -> Costs:
        """Seconds of each task from when it could have begun."""
        del graph
        return self._costs

    @cached_property
    def _costs(self) -> Costs:
        return fixed_costs(self.causes.timeline.duration + _lateness(self.causes))


@dataclass(frozen=True)
class Pace:
    """A rank's passes compared with those of the median rank.

    `excess` is the share by which they take longer in sum; `gain`, how many seconds earlier the
    step would end if those of each kind that it is slower in took as long as the median rank's.
    """

    rank: int
    excess: float
    gain: float


def _lateness(causes: Causes) -> Seconds:
    """For each task, the seconds from its blocker's end to its start; 0 where simulated."""
    late: Seconds = np.maximum(causes.timeline.start - could_start(causes), 0.0)
    return late


def could_start(causes: Causes) -> Seconds:
    """For each task, when its blocker ended: at the step's begin, if it has none."""
    timeline, blocker = causes.timeline, causes.blocker
    ended: Seconds = np.where(blocker == NONE, timeline.start.min(), timeline.end[blocker])
    return ended


def paces(causes: Causes) -> list[Pace]:
    """Pace of each rank against the others: a straggler has a large excess, and a gain."""
    graph, duration = causes.timeline.graph, causes.timeline.duration
    usual = _usual(causes)
    costs = AsItRan(causes).costs(graph)
    whole = step_time(graph, costs)
    of_ranks = []
    for rank in range(graph.layout.pp):
        own = graph.compute_tasks.of(rank)
        faster = costs.seconds.copy()
        faster[own] -= duration[own] * (1 - _keeping_up(graph, duration, usual, own))
        gain = whole - step_time(graph, fixed_costs(faster))
        expected = float(usual[own].sum())
        excess = float(duration[own].sum()) / expected - 1 if expected else 0.0
        of_ranks.append(Pace(rank, excess, max(gain, 0.0)))
    return of_ranks


def _keeping_up(graph: TaskGraph, duration: Seconds, usual: Seconds, own: Integers) -> Seconds:
    """For each pass of a rank, the factor that makes its kind no slower than the median rank's.

    One for all passes of a kind: what makes only some of them slow is no slow rank.
    """
    kind = graph.operation[own]
    taken, expected = np.bincount(kind, duration[own]), np.bincount(kind, usual[own])
    factor = np.minimum(expected / np.where(taken > 0, taken, 1.0), 1.0)
    factors: Seconds = np.where(taken > 0, factor, 1.0)[kind]
    return factors


def _usual(causes: Causes) -> Seconds:
    """For each pass, how long one of its operation takes on the median rank; 0 for others."""
    graph, duration = causes.timeline.graph, causes.timeline.duration
    usual = np.zeros(len(graph))
    for code in np.unique(graph.operation[graph.is_compute]).tolist():
        tasks = np.flatnonzero(graph.operation == OPERATIONS[code])
        ranks = graph.rank[tasks]
        mean = np.bincount(ranks, duration[tasks]) / np.maximum(np.bincount(ranks), 1)
        usual[tasks] = np.median(mean[np.unique(ranks)])
    return usual

"""Compute times of each rank, by numpy: the reference of the compiled core."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bfpp.core.rank_times import RankTimes
from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE, Groups, Seconds, group_by
from bfpp.traces.timeline.rank_times import COMMUNICATING, kinds_of_communication


def rank_times_by_numpy(graph: TaskGraph, start: Seconds, end: Seconds) -> RankTimes:
    """The rank times of a graph, given starts and ends of its tasks; each rank computes."""
    ranks, kinds = graph.layout.pp, len(COMMUNICATING)
    first_start, last_end, busy = np.empty((3, ranks))
    exposed = np.empty((kinds, ranks))
    communication = _communicating_tasks(graph)
    starts, ends = start[communication.member], end[communication.member]
    bounds = communication.start.tolist()
    for rank in range(ranks):
        own = graph.compute_tasks.of(rank)
        computing = _stretches(start[own], end[own])
        first_start[rank], last_end[rank] = computing.start[0], computing.end[-1]
        busy[rank] = computing.seconds
        of_kinds = pairwise(bounds[rank * kinds : (rank + 1) * kinds + 1])
        for kind, (begin, until) in enumerate(of_kinds):
            exposed[kind, rank] = _exposed(starts[begin:until], ends[begin:until], computing)
    return RankTimes(first_start, last_end, busy, exposed)


def _communicating_tasks(graph: TaskGraph) -> Groups:
    """For each rank, of each of `COMMUNICATING`, the tasks from there, then those to there."""
    kinds = len(COMMUNICATING)
    kind = kinds_of_communication(graph.communication).take(graph.operation)
    tasks = np.flatnonzero(kind != NONE).astype(np.int32)
    kind, peer = kind[tasks], graph.peer[tasks]
    own = graph.rank[tasks] * kinds + kind
    received = np.flatnonzero(peer != NONE)
    others = peer[received] * kinds + kind[received]
    return group_by(
        np.append(own, others), np.append(tasks, tasks[received]), graph.layout.pp * kinds
    )


class Stretches(NamedTuple):
    """Times apart from each other in which something runs, in order."""

    start: Seconds
    end: Seconds

    @property
    def seconds(self) -> float:
        """Their seconds together, added up one by one as a loop does it."""
        return float((self.end - self.start).cumsum()[-1])


def _stretches(start: Seconds, end: Seconds) -> Stretches:
    """Stretches in which at least one of some tasks runs."""
    in_order = np.argsort(start, kind="stable")
    start, reached = start[in_order], np.maximum.accumulate(end[in_order])
    begins = np.ones(len(start) + 1, dtype=bool)
    begins[1:-1] = start[1:] > reached[:-1]
    return Stretches(start[begins[:-1]], reached[begins[1:]])


def _exposed(start: Seconds, end: Seconds, computing: Stretches) -> float:
    """Seconds in which one of some tasks runs while nothing is computed."""
    if not len(start):
        return 0.0
    start = np.append(computing.start, start)
    end = np.append(computing.end, end)
    return _stretches(start, end).seconds - computing.seconds

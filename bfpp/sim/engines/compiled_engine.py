"""The fast engine: loops of the compiled core over the graph's columns.

Theory of operation. Tasks are numbered in an order in which they could run, so one sweep in that
order gives all times, as long as flows do not meet: each is as fast as its narrowest port. The
sweep is tried first. It gives up at a flow that enters a port before one of a smaller number has
left it, and only then are tasks replayed with flows in the order of time.

Invariants:

- Where the sweep does not give up, no two flows meet: in each port they follow one another in the
  order of their numbers. It may give up without need, where they follow in another order.
- Both loops give the times of the reference engine, to the last bit (`bfpp.sim.engines.ports` says
  what that takes).

Rejected: the replay alone. It keeps a heap and the state of each port, and most graphs of a search
need neither: their transfers have ports to themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bfpp.core import replay as core
from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.replicas.joint_graph import JointGraph
from bfpp.sim.engines.cost_model import Costs
from bfpp.traces.timeline.timeline import Timeline

SOURCE = "compiled"
"""The source of this engine's timelines."""


class Times(NamedTuple):
    """Start and end of each task, in seconds."""

    start: Seconds
    end: Seconds


class StepTime(NamedTuple):
    """Seconds of a step, and of all its passes together."""

    seconds: float
    passes: float


def simulate(
    graph: TaskGraph, costs: Costs, progress: Callable[[int], None] | None = None
) -> Timeline:
    """Predict the times of the graph's tasks; `progress` is not called, it is soon done."""
    del progress
    return timeline_of(graph, times(graph, costs))


def timeline_of(graph: TaskGraph, times: Times) -> Timeline:
    """These times as a timeline."""
    return Timeline(graph, *times, source=SOURCE)


def times(graph: TaskGraph, costs: Costs) -> Times:
    """Start and end of each task."""
    columns = _columns(costs)
    start, end = np.empty(len(graph)), np.empty(len(graph))
    lanes = graph.lane, graph.peer_lane
    if core.sweep(*lanes, *graph.dependencies, columns, len(graph.lanes), start, end):
        core.replay(*graph.followers, columns, None, start, end)
    return Times(start, end)


def joint_times(graph: JointGraph, costs: Costs) -> Times:
    """Start and end of each task of replicas, whose costs are side by side."""
    return Times(*graph.tasks.times(_columns(costs)))


def step_times(graph: TaskGraph, costs: Sequence[Costs]) -> Seconds:
    """The step time under each of several costs, on one graph, in seconds."""
    return np.array([step_time(graph, each) for each in costs])


def step_time(graph: TaskGraph, costs: Costs) -> float:
    """End of the last task, in seconds."""
    return last_end(times(graph, costs))


def last_end(times: Times) -> float:
    """End of the last task, in seconds."""
    return float(times.end.max())


def flows_meet(costs: Costs, start: Seconds, end: Seconds) -> bool:
    """True if two flows share a port at some instant, given times without contention."""
    moves = np.flatnonzero(costs.bytes > 0)
    if not len(moves):
        return False
    begin, until = start[moves] + costs.seconds[moves], end[moves]
    flow, place = np.nonzero(costs.ports[moves] != NONE)
    port, begin, until = costs.ports[moves][flow, place], begin[flow], until[flow]
    in_order = np.lexsort((begin, port))
    port, begin, until = port[in_order], begin[in_order], until[in_order]
    return bool(((port[1:] == port[:-1]) & (begin[1:] < until[:-1])).any())


class Slopes(NamedTuple):
    """Derivatives of the columns of `Costs` by some parameters, one a column."""

    seconds: Seconds
    bytes: Seconds
    bandwidth: Seconds


def replay_with_slopes(
    graph: TaskGraph, costs: Costs, slopes: Slopes
) -> tuple[Seconds, Seconds, Seconds]:
    """Start and end of each task, and the derivative of its end by each parameter."""
    start, end = np.empty(len(graph)), np.empty(len(graph))
    end_slope = np.empty_like(slopes.seconds)
    core.replay(*graph.followers, _columns(costs), (*slopes, end_slope), start, end)
    return start, end, end_slope


def _columns(costs: Costs) -> tuple[Seconds, Seconds, Integers, Seconds]:
    """The costs as the core takes them, whatever types a user's cost model has."""
    real = (
        np.ascontiguousarray(each, dtype=np.float64)
        for each in (costs.seconds, costs.bytes, costs.bandwidth)
    )
    seconds, size, bandwidth = real
    return seconds, size, np.ascontiguousarray(costs.ports, dtype=np.int32), bandwidth

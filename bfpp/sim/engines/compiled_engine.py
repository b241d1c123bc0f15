"""The fast engine: loops over the graph's columns, compiled once that pays.

If no port carries two flows at once, one sweep in task order gives the times: it is tried
first, and left where a flow may meet another. Then the tasks are replayed, flows in the order of
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.sim.engines.compiled_graph import work_out_followers
from bfpp.sim.engines.compiled_timeline import CompiledTimeline
from bfpp.sim.engines.cost_model import Costs
from bfpp.sim.engines.loops import kernels, timeline_kernels
from bfpp.sim.engines.loops.compiling import WORK
from bfpp.traces.timeline.timeline import Timeline

SOURCE = "compiled"
"""The source of this engine's timelines."""

SUMMED = ("first_start", "step_time", "pass_seconds")
"""The properties of a timeline that a loop gives it, as `timeline_kernels.summed` has them."""

UNCOMPILED = {"sweep": 1, "replay": 14, "summed": 0.4}
"""Time of each uncompiled loop for a task, in tasks of a sweep of a microsecond each."""


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
    """These times as a timeline, with what is asked of every one."""
    timeline = CompiledTimeline(graph, *times, source=SOURCE)
    vars(timeline).update(zip(SUMMED, map(float, _summed(graph, times)), strict=True))
    return timeline


def step_of(graph: TaskGraph, times: Times) -> StepTime:
    """Seconds of a step with these times."""
    _, seconds, passes = _summed(graph, times)
    return StepTime(float(seconds), float(passes))


def _summed(graph: TaskGraph, times: Times) -> tuple[float, float, float]:
    """The properties that are named in `SUMMED`."""
    found: tuple[float, float, float] = _loop("summed", graph, timeline_kernels)(
        *times, graph.is_pass
    )
    return found


def times(graph: TaskGraph, costs: Costs) -> Times:
    """Start and end of each task."""
    start, end = np.empty((2, len(graph)))
    may_meet = _loop("sweep", graph)(
        graph.lane, graph.peer_lane, *graph.dependencies, _columns(costs), len(graph.lanes),
        start, end,
    )  # fmt: skip
    return _replay(graph, costs) if may_meet else Times(start, end)


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


def _replay(graph: TaskGraph, costs: Costs) -> Times:
    work_out_followers(graph)
    start, end = np.empty((2, len(graph)))
    _loop("replay", graph)(*graph.followers, _columns(costs), None, start, end)
    return Times(start, end)


def replay_with_slopes(
    graph: TaskGraph, costs: Costs, slopes: Slopes
) -> tuple[Seconds, Seconds, Seconds]:
    """Start and end of each task, and the derivative of its end by each parameter."""
    start, end = np.empty((2, len(graph)))
    end_slope = np.empty_like(slopes.seconds)
    changing = slopes.seconds, slopes.bytes.copy(), slopes.bandwidth, end_slope
    work_out_followers(graph)
    _loop("replay", graph)(*graph.followers, _columns(costs), changing, start, end)
    return start, end, end_slope


def _columns(costs: Costs) -> tuple[Seconds | Integers, ...]:
    """The costs as loops have them."""
    return costs.seconds, costs.bytes, costs.ports, costs.bandwidth


def _loop(name: str, graph: TaskGraph, module: ModuleType = kernels) -> Callable[..., Any]:
    """The loop of that name, to run over a graph."""
    return WORK.loop(module, name, int(len(graph) * UNCOMPILED[name]))

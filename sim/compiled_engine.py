"""The fast engine: loops over the graph's columns, compiled once that pays.

If no port carries two flows at once, one sweep in task order gives the times: it is
tried first, but for small graphs once the loops are compiled, and its result kept if
no two flows meet in a port. Otherwise the tasks are replayed, flows in the order of
time. The same loops run uncompiled until a process has spent about as long in them as
loading the compiler takes: one small graph never waits for it, and many small ones soon
run compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.machinery import SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE, Seconds
from bfpp.sim import kernels
from bfpp.sim.costs import Costs
from bfpp.traces.timeline import Timeline

COMPILE_FROM = 300_000
"""Tasks of an uncompiled sweep that take as long as loading numba: about 0.3 s."""

SMALL = 10_000
"""Tasks that are replayed, compiled, sooner than it is known whether flows meet."""

UNCOMPILED = {"sweep": 1, "replay": 14}
"""How long each loop takes for a task, uncompiled: in tasks of a sweep, a microsecond each."""


def simulate(
    graph: TaskGraph, costs: Costs, progress: Callable[[int], None] | None = None
) -> Timeline:
    """Predict the times of the graph's tasks; `progress` is not called, it is soon done."""
    del progress
    start, end = times(graph, costs)
    return Timeline(graph, start, end, source="compiled")


def times(graph: TaskGraph, costs: Costs) -> tuple[Seconds, Seconds]:
    """When each task starts and ends, in seconds."""
    replayed_soon = _LOOPS.compiled and len(graph) <= SMALL and len(costs.bandwidth)
    if not replayed_soon:
        start, end = _sweep(graph, costs)
        if not flows_meet(costs, start, end):
            return start, end
        del start, end
    return _replay(graph, costs)


def step_times(graph: TaskGraph, costs: Sequence[Costs]) -> Seconds:
    """The step time under each of several costs, on one graph, in seconds."""
    return np.array([times(graph, each)[1].max() for each in costs])


def _sweep(graph: TaskGraph, costs: Costs) -> tuple[Seconds, Seconds]:
    start, end = np.empty((2, len(graph)))
    _LOOPS.get("sweep", len(graph))(
        graph.lane,
        graph.peer_lane,
        graph.dependencies.start,
        graph.dependencies.member,
        costs.seconds,
        costs.seconds_moving(),
        np.zeros(len(graph.lanes)),
        start,
        end,
    )
    return start, end


def flows_meet(costs: Costs, start: Seconds, end: Seconds) -> bool:
    """Whether two flows are in one port at once, given times without contention."""
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


def _replay(graph: TaskGraph, costs: Costs) -> tuple[Seconds, Seconds]:
    nothing = Slopes(
        *(np.empty((size, 0)) for size in (len(graph), len(graph), len(costs.bandwidth)))
    )
    start, end, _ = replay_with_slopes(graph, costs, nothing)
    return start, end


def replay_with_slopes(
    graph: TaskGraph, costs: Costs, slopes: Slopes
) -> tuple[Seconds, Seconds, Seconds]:
    """When each task starts and ends, and the derivative of its end by each parameter."""
    followers = graph.followers
    start, end = np.empty((2, len(graph)))
    end_slope = np.empty_like(slopes.seconds)
    _LOOPS.get("replay", len(graph))(
        np.bincount(followers.member, minlength=len(graph)).astype(np.int32),
        followers.start,
        followers.member,
        (costs.seconds, costs.bytes, costs.ports, costs.bandwidth),
        (slopes.seconds, slopes.bytes.copy(), slopes.bandwidth),
        start,
        end,
        end_slope,
    )
    return start, end, end_slope


class _Loops:
    """The loops of `bfpp.sim.kernels`, compiled once enough has been asked of them."""

    def __init__(self) -> None:
        self._asked = 0

    @property
    def compiled(self) -> bool:
        """Whether so much has been asked of the loops that they are compiled."""
        return self._asked >= COMPILE_FROM

    def get(self, name: str, tasks: int) -> Callable[..., Any]:
        """The loop of that name, to run over so many tasks."""
        self._asked += tasks * UNCOMPILED[name]
        loops = _compiled_kernels() if self.compiled else kernels
        loop: Callable[..., Any] = getattr(loops, name)
        return loop


_LOOPS = _Loops()


@cache
def _compiled_kernels() -> ModuleType:
    """A second copy of `bfpp.sim.kernels`, with its functions compiled (and kept on disk)."""
    import numba

    loader = SourceFileLoader(kernels.__name__, kernels.__file__)
    module = ModuleType(kernels.__name__)
    module.__file__ = kernels.__file__
    loader.exec_module(module)
    for name, function in list(vars(module).items()):
        if isinstance(function, FunctionType) and function.__module__ == module.__name__:
            # Helpers become part of the loops: a call would count each array that it is given.
            inline: Literal["always", "never"] = "always" if name.startswith("_") else "never"
            setattr(module, name, numba.njit(cache=True, inline=inline)(function))
    return module

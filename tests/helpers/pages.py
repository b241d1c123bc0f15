"""Timelines and panels for tests of the interactive page."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from bfpp.schedules import Communication, Layout, Sharding, build_graph
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.simpy_engine import simulate
from bfpp.traces.explain.causes import Causes
from bfpp.traces.figures.panel import Panel
from bfpp.traces.timeline.timeline import Timeline

HOSTILE = "</script><img src=x onerror=\"document.title='pwned'\"><b>bold</b> & <br>"


def timeline(
    schedule: str, layout: Layout, costs: AbstractCosts, sharding: Sharding = Sharding.FULL
) -> Timeline:
    graph = build_graph(schedule, layout, Communication(sharding))
    return simulate(graph, costs.costs(graph))


@cache
def small() -> Timeline:
    """About 2,000 tasks, drawn one by one."""
    costs = AbstractCosts(1e-3, 2e-3, transfer=2e-4, gather=3e-3, reduce=5e-3, optimizer=1e-3)
    return timeline("breadth-first", Layout(4, 32, 4), costs)


@cache
def large() -> Timeline:
    """About 200,000 tasks; the optimizer's last much less than a pixel."""
    costs = AbstractCosts(1e-3, 2e-3, gather=3e-3, reduce=5e-3, optimizer=1e-4)
    return timeline("breadth-first", Layout(16, 400, 8), costs)


def channels(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))


def middle_of(shown: Timeline, task: int) -> float:
    return float(shown.start[task] + shown.end[task]) / 2


def explained() -> Panel:
    """A timeline that waits for transfers, with its causes."""
    waiting = timeline(
        "depth-first", Layout(4, 8, 4), AbstractCosts(transfer=0.5, reduce=6), Sharding.NONE
    )
    causes = Causes(waiting)
    waits = [replace(wait, gain=0.25) for wait in causes.waits]
    return Panel("why", waiting, waits=tuple(waits), critical_path=tuple(causes.critical_path))

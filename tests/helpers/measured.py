"""Timelines as a real execution could measure them: noisy, late, by clocks that err."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE
from bfpp.traces.timeline.timeline import MEASURED, Timeline
from tests.helpers.strategies import graphs, order_graphs

OFFSET = 1.7e9
"""Seconds that a clock may show at the begin of a step."""


def predecessors(graph: TaskGraph) -> list[set[int]]:
    """For each task, its dependencies and those just ahead of it on its lanes."""
    before = []
    ahead: dict[int, int] = {}
    for task in graph.tasks():
        lanes = [lane for lane in (task.lane, task.peer_lane) if lane != NONE]
        before.append({*task.dependencies, *(ahead[lane] for lane in lanes if lane in ahead)})
        ahead.update(dict.fromkeys(lanes, task.number))
    return before


def executed(graph: TaskGraph, seed: int, clock_error: float = 0.0) -> Timeline:
    """Each task lasts a random time (some none at all) and starts a little late.

    A clock's error, in seconds, can make any task seem to start before those it
    waited for have ended, or to end before it starts.
    """
    random = np.random.default_rng(seed)
    size = len(graph)
    duration = random.exponential(1.0, size) * (random.random(size) > 0.1)
    late = random.exponential(0.05, size) * (random.random(size) > 0.2)
    waited = random.exponential(0.2, size) * (random.random(size) > 0.7)
    ready, end = np.zeros((2, size))
    for number, before in enumerate(predecessors(graph)):
        ready[number] = max((end[other] for other in before), default=0.0) + late[number]
        end[number] = ready[number] + waited[number] + duration[number]
    start, posted = ready + waited, np.maximum(ready - random.exponential(0.5, size), 0.0)
    times = [OFFSET + column + _error(random, size, clock_error)
             for column in (start, end, posted, ready)]  # fmt: skip
    return Timeline(graph, times[0], times[1], MEASURED, times[2], times[3], {"host": "here"})


def _error(random: np.random.Generator, size: int, most: float) -> np.ndarray:
    return random.uniform(-most, most, size)


@st.composite
def measured(draw: st.DrawFn, clock_error: float = 0.0) -> Timeline:
    graph = draw(st.one_of(graphs(ranks=4, cells=24), order_graphs()))
    return executed(graph, draw(st.integers(0, 10**6)), clock_error)

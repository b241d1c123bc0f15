"""The reference engine: one SimPy process for each lane of the graph.

A lane takes its tasks in order. The lane that owns a task (the sender's, for a
transfer) waits for the other lane to come to it, then for its dependencies,
then spends its cost. It reads as the rules of the graph do, and the faster
engine is held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
import simpy

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE
from bfpp.sim.engines.cost_model import Costs
from bfpp.sim.engines.ports import Ports
from bfpp.traces.timeline.timeline import Timeline

Steps = Generator[simpy.Event, object, None]


def simulate(
    graph: TaskGraph, costs: Costs, progress: Callable[[int], None] | None = None
) -> Timeline:
    """Replay the graph; `progress`, if given, is called with each task that ends.

    Raises `RuntimeError` if the graph deadlocks.
    """
    replay = _Replay(graph, costs, progress or _ignore)
    return Timeline(graph, *replay.run(), source="simpy")


def _ignore(task: int) -> None:
    del task


class _Replay:
    def __init__(self, graph: TaskGraph, costs: Costs, progress: Callable[[int], None]) -> None:
        self.graph = graph
        self.costs = costs
        self.progress = progress
        self.environment = simpy.Environment()
        self.ports = Ports(self.environment, costs.bandwidth)
        self.met = {
            int(task): self.environment.event() for task in np.flatnonzero(graph.peer_lane != NONE)
        }
        self.done = [self.environment.event() for _ in range(len(graph))]
        self.start = np.full(len(graph), np.nan)
        self.end = np.full(len(graph), np.nan)

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        for lane in range(len(self.graph.lanes)):
            self.environment.process(self.lane(lane))
        self.environment.run()
        if np.isnan(self.end).any():
            stuck = self.graph.task(int(np.argmax(np.isnan(self.end))))
            raise RuntimeError(f"the graph deadlocks: {stuck} never ends")
        return self.start, self.end

    def lane(self, lane: int) -> Steps:
        for task in self.graph.lane_tasks.of(lane).tolist():
            if self.graph.lane[task] == lane:
                yield from self.task(task)
            else:
                self.met[task].succeed()
                yield self.done[task]

    def task(self, task: int) -> Steps:
        if self.graph.peer_lane[task] != NONE:
            yield self.met[task]
        for dependency in self.graph.dependencies.of(task).tolist():
            yield self.done[dependency]
        self.start[task] = self.environment.now
        yield self.environment.timeout(self.costs.seconds[task])
        if self.costs.bytes[task] > 0:
            yield self.ports.send(self.costs.bytes[task], self.costs.ports[task])
        self.end[task] = self.environment.now
        self.done[task].succeed()
        self.progress(task)

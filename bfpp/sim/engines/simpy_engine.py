"""The reference engine: one SimPy process for each lane of the graph.

A lane takes its tasks in order. The lane that owns a task (the sender's, for a
transfer) waits for the other lane to come to it, then for its dependencies,
then spends its cost. Those of replicas that meet begin once all of them could. It
reads as the rules of the graph do, and the faster engine is held against it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from functools import partial

import numpy as np
import simpy

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.replicas.joint_graph import JointGraph
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
    environment = simpy.Environment()
    ports = Ports(environment, costs.bandwidth)
    replay = _Replay(environment, ports, graph, costs, progress or _ignore)
    environment.run()
    return Timeline(graph, *replay.times(), source="simpy")


def joint_times(graph: JointGraph, costs: Costs) -> tuple[Seconds, Seconds]:
    """Start and end of each task of replicas, whose costs are side by side; raises likewise."""
    environment = simpy.Environment()
    ports, meetings = Ports(environment, costs.bandwidth), _Meetings(environment, graph.meeting)
    replays = []
    for begin, each in zip(graph.begins.tolist(), graph.replicas, strict=False):
        own, meet = costs.of(np.arange(begin, begin + len(each))), partial(meetings.reach, begin)
        replays.append(_Replay(environment, ports, each, own, _ignore, meet))
    environment.run()
    starts, ends = zip(*(each.times() for each in replays), strict=True)
    return np.concatenate(starts), np.concatenate(ends)


def _ignore(task: int) -> None:
    del task


class _Meetings:
    """Meetings of replicas' tasks: each begins when the last of its members has come."""

    def __init__(self, environment: simpy.Environment, meeting: Integers) -> None:
        self.meeting = meeting
        self.absent = Counter(meeting.tolist())
        self.complete = {number: environment.event() for number in self.absent}

    def reach(self, begin: int, task: int) -> Steps:
        """Wait for all others at the meeting of a task, if it has one."""
        if (number := int(self.meeting[begin + task])) == NONE:
            return
        self.absent[number] -= 1
        if not self.absent[number]:
            self.complete[number].succeed()
        yield self.complete[number]


class _Replay:
    def __init__(
        self,
        environment: simpy.Environment,
        ports: Ports,
        graph: TaskGraph,
        costs: Costs,
        progress: Callable[[int], None],
        meet: Callable[[int], Steps] | None = None,
    ) -> None:
        self.graph = graph
        self.costs = costs
        self.progress = progress
        self.meet = meet
        self.environment = environment
        self.ports = ports
        self.met = {
            int(task): environment.event() for task in np.flatnonzero(graph.peer_lane != NONE)
        }
        self.done = [environment.event() for _ in range(len(graph))]
        self.start = np.full(len(graph), np.nan)
        self.end = np.full(len(graph), np.nan)
        for lane in range(len(graph.lanes)):
            environment.process(self.lane(lane))

    def times(self) -> tuple[Seconds, Seconds]:
        """Start and end of each task, once all that can has happened."""
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
        if self.meet:
            yield from self.meet(task)
        self.start[task] = self.environment.now
        yield self.environment.timeout(self.costs.seconds[task])
        if self.costs.bytes[task] > 0:
            yield self.ports.send(self.costs.bytes[task], self.costs.ports[task])
        self.end[task] = self.environment.now
        self.done[task].succeed()
        self.progress(task)

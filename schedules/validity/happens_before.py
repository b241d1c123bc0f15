"""What must have happened before what, by lanes, rendezvous and dependencies alone.

A task starts once it heads its lane (a transfer: both its lanes) and its
dependencies have ended. So it waits for its dependencies and for the task
before it on each of its lanes, and `network` draws just that.

Two readings of it, which know nothing of what tasks mean:

- `replay` runs every lane in order with unbuffered sends, and says where it
  gets stuck.
- `happens_before` says which tasks have ended before another one starts,
  however long anything takes.

The only file of `schedules` that uses networkx, which it loads when it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Integers
from bfpp.schedules.graph import TaskGraph

if TYPE_CHECKING:
    import networkx as nx


def network(graph: TaskGraph) -> nx.DiGraph:
    """Tasks as nodes; an edge leads from a task to each that waits for its end."""
    import networkx as nx

    waits = nx.DiGraph()
    waits.add_nodes_from(range(len(graph)))
    dependencies = graph.dependencies
    task = np.repeat(np.arange(len(graph)), np.diff(dependencies.start))
    waits.add_edges_from(zip(dependencies.member.tolist(), task.tolist(), strict=True))
    for lane in range(len(graph.lanes)):
        waits.add_edges_from(pairwise(graph.lane_tasks.of(lane).tolist()))
    return waits


def replay(graph: TaskGraph) -> dict[int, int]:
    """Run all lanes in order; returns the head of each lane that gets stuck, by lane.

    A send is not buffered: a transfer runs when it heads both its lanes.
    """
    lanes = [graph.lane_tasks.of(lane).tolist() for lane in range(len(graph.lanes))]
    ends = np.where(graph.peer_lane == NONE, 1, 2)
    waiting = (ends + np.diff(graph.dependencies.start)).tolist()
    position = [0] * len(lanes)
    arrived = [tasks[0] for tasks in lanes if tasks]
    while arrived:
        task = arrived.pop()
        waiting[task] -= 1
        if waiting[task]:
            continue
        arrived.extend(graph.dependents.of(task).tolist())
        for lane in (int(graph.lane[task]), int(graph.peer_lane[task])):
            if lane == NONE:
                continue
            position[lane] += 1
            if position[lane] < len(lanes[lane]):
                arrived.append(lanes[lane][position[lane]])
    return {
        lane: tasks[at]
        for lane, (tasks, at) in enumerate(zip(lanes, position, strict=True))
        if at < len(tasks)
    }


@dataclass(frozen=True, eq=False)
class HappensBefore:
    """Which tasks have ended before another one starts.

    A lane is a chain, so the tasks of a lane that happen before a task are the
    first few of it: `reached[task, lane]` says how many (a vector clock, after
    Fidge and Mattern). `place` is each task's place on its own lane, `turn` its
    place in one order in which all tasks could run one by one.
    """

    lane: Integers
    place: Integers
    turn: Integers
    reached: Integers

    def __call__(self, first: int, second: int) -> bool:
        """Whether the first task has ended when the second one starts, in any case."""
        return bool(self.reached[second, self.lane[first]] > self.place[first])

    def before(self, tasks: Integers, second: int) -> Flags:
        """Which of these tasks have ended when that one starts."""
        ended: Flags = self.reached[second, self.lane[tasks]] > self.place[tasks]
        return ended

    def after(self, first: int, tasks: Integers) -> Flags:
        """Which of these tasks start only when that one has ended."""
        waiting: Flags = self.reached[tasks, self.lane[first]] > self.place[first]
        return waiting


def happens_before(graph: TaskGraph) -> HappensBefore:
    """The order of a graph that does not deadlock, in time and space tasks x lanes.

    Raises `networkx.NetworkXUnfeasible` if some tasks wait for each other.
    """
    import networkx as nx

    waits = network(graph)
    place = _places(graph)
    turn = np.empty(len(graph), dtype=np.int32)
    reached = np.zeros((len(graph), len(graph.lanes)), dtype=np.int32)
    own = list(zip(graph.lane.tolist(), (place + 1).tolist(), strict=True))
    for now, task in enumerate(nx.topological_sort(waits)):
        turn[task] = now
        row = reached[task]
        for previous in waits.predecessors(task):
            np.maximum(row, reached[previous], out=row)
            lane, count = own[previous]
            row[lane] = max(row[lane], count)
    return HappensBefore(graph.lane, place, turn, reached)


def _places(graph: TaskGraph) -> Integers:
    """For each task, its place on its own lane."""
    place = np.empty(len(graph), dtype=np.int32)
    for lane in range(len(graph.lanes)):
        tasks = graph.lane_tasks.of(lane)
        mine = graph.lane[tasks] == lane
        place[tasks[mine]] = np.flatnonzero(mine)
    return place

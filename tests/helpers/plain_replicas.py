"""A plain simulator of replicas: a heap of events over task objects, from the rules alone.

It shares nothing with the engines but the graph of each replica:

- A lane is a queue. A task is at its turn when it heads the lanes of both its ends.
- It may begin when, besides, all that it depends on have ended.
- What replicas do together begins when the n-th of its kind may begin in each replica of the group:
  gathers, reductions and norms of shares in all replicas, or in a group that shards its state
  (they follow one another); the all-reduces of such groups among their first, second, ... members.
- Each ends after its own seconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Sequence
from heapq import heappop, heappush

from bfpp.schedules import Communication, Task, TaskGraph
from bfpp.schedules.columns import NONE

Name = tuple[int, int]
"""A replica, and the number of a task there."""


class Stuck(Exception):
    """Some tasks never begin."""


def plain_times(
    replicas: Sequence[TaskGraph], seconds: Sequence[Sequence[float]], groups: int = 1
) -> dict[Name, tuple[float, float]]:
    """Start and end of each task; raises `Stuck`."""
    simulator = _Simulator(replicas, groups)
    events: list[tuple[float, Name]] = []
    times: dict[Name, tuple[float, float]] = {}
    now = 0.0
    while True:
        for name in simulator.begin():
            end = now + seconds[name[0]][name[1]]
            times[name] = now, end
            heappush(events, (end, name))
        if not events:
            break
        now, name = heappop(events)
        simulator.end(name)
        while events and events[0][0] == now:
            simulator.end(heappop(events)[1])
    if len(times) < len(simulator.tasks):
        raise Stuck
    return times


class _Simulator:
    def __init__(self, replicas: Sequence[TaskGraph], groups: int) -> None:
        self.tasks: dict[Name, Task] = {
            (replica, task.number): task
            for replica, graph in enumerate(replicas)
            for task in graph.tasks()
        }
        self.queues: dict[Name, deque[Name]] = defaultdict(deque)
        for name in sorted(self.tasks):
            for lane in self.lanes(name):
                self.queues[lane].append(name)
        self.waits = {name: len(task.dependencies) for name, task in self.tasks.items()}
        self.followers: dict[Name, list[Name]] = defaultdict(list)
        for (replica, number), task in self.tasks.items():
            for before in task.dependencies:
                self.followers[replica, before].append((replica, number))
        self.meeting = _meetings(replicas, self.tasks, groups)
        self.members = Counter(self.meeting.values())
        self.present: dict[Hashable, list[Name]] = defaultdict(list)
        self.looked_at = list(self.tasks)
        self.begun: set[Name] = set()

    def lanes(self, name: Name) -> list[Name]:
        task = self.tasks[name]
        return [(name[0], lane) for lane in (task.lane, task.peer_lane) if lane != NONE]

    def begin(self) -> list[Name]:
        """The tasks that begin now."""
        begins = []
        for name in self.looked_at:
            at_turn = all(self.queues[lane][0] == name for lane in self.lanes(name))
            if name in self.begun or self.waits[name] or not at_turn:
                continue
            self.begun.add(name)
            if (meeting := self.meeting.get(name)) is None:
                begins.append(name)
                continue
            self.present[meeting].append(name)
            if len(self.present[meeting]) == self.members[meeting]:
                begins += self.present[meeting]
        self.looked_at = []
        return begins

    def end(self, name: Name) -> None:
        for lane in self.lanes(name):
            assert self.queues[lane].popleft() == name
            self.looked_at += list(self.queues[lane])[:1]
        for after in self.followers[name]:
            self.waits[after] -= 1
            self.looked_at.append(after)


def _meetings(
    replicas: Sequence[TaskGraph], tasks: dict[Name, Task], groups: int
) -> dict[Name, Hashable]:
    """For each task that replicas do together, a name for all of them."""
    size, seen, meetings = len(replicas) // groups, Counter[Hashable](), {}
    for (replica, number), task in sorted(tasks.items()):
        group = _group(task, replica, size, replicas[replica].communication)
        if group is None:
            continue
        kind = task.operation.name, task.rank, task.unit
        seen[replica, kind] += 1
        meetings[replica, number] = (group, kind, seen[replica, kind])
    return meetings


def _group(task: Task, replica: int, size: int, communication: Communication) -> Hashable:
    """The replicas that do it together; None for what each does alone."""
    name = task.operation.name
    if name == "ALL_REDUCE":
        return "member", replica % size
    is_sharded_norm = name == "NORM" and communication.sharding != "none"
    if name in ("GATHER", "REDUCE") or is_sharded_norm:
        return "group", replica // size
    return None

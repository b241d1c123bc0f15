"""Heartbeats: twice a second, or less often, a process publishes the state of its lanes.

Pure values, and their JSON form in the shared store. A heartbeat says what each lane
is doing and for how long, so that a reader can name the task without the graph,
after the process itself can no longer answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from bfpp.executor.processes.watch.flight_recorder import Posted
from bfpp.executor.processes.watch.json_fields import from_json, to_json

EVERYONE = -1
"""All other processes, as peers of an activity: their numbers would fill each heartbeat."""

MOST_A_SECOND = 250
"""Heartbeats of all processes together: to read and judge one takes up to 0.5 ms of CPU time."""


@dataclass(frozen=True)
class Limits:
    """Timeouts of the watch, in seconds.

    `hang`: the longest compute task, silence of a process, or time without
    progress in the whole run. `grace`: the longest silence once something is
    known to be wrong; a lost connection gets twice that, since the peer that
    closed it can explain more. `start`: until a process's first heartbeat, which it
    sends after its imports. `heartbeat`: the interval between two heartbeats.
    """

    hang: float = 60.0
    grace: float = 2.0
    start: float = 300.0
    heartbeat: float = 0.5

    def among(self, processes: int) -> Limits:
        """The timeouts of a run of many: all together send `MOST_A_SECOND` heartbeats at the most.

        A process is silent for long after some heartbeats that have not come.
        """
        heartbeat = max(self.heartbeat, processes / MOST_A_SECOND)
        if heartbeat == self.heartbeat:
            return self
        grace, hang = max(self.grace, 4 * heartbeat), max(self.hang, 4 * heartbeat)
        return replace(self, heartbeat=heartbeat, grace=grace, hang=hang)

    @property
    def communication(self) -> timedelta:
        """Torch's own timeout: longer than all others, since only the watch can name a culprit."""
        return timedelta(seconds=max(3600.0, 10 * self.hang, 2 * self.start))


@dataclass(frozen=True)
class Activity:
    """The activity of a lane, worded to follow `in`: `backward of stage 3`.

    `peers` are the processes that it waits for (or `EVERYONE`); without any it is compute.
    `number` is its task number in the graph, which orders the activities.
    `limit` is its own timeout in seconds, if not the run's.
    """

    words: str
    peers: tuple[int, ...] = ()
    number: int | None = None
    limit: float | None = None


@dataclass(frozen=True)
class LaneState:
    """A lane's activity (its last one unless `busy`), and since how many seconds.

    `thread` is the host thread that runs it; 0 for a device's lane.
    """

    lane: str
    activity: Activity
    busy: bool
    seconds: float
    thread: int = 0


@dataclass(frozen=True)
class Failure:
    """An exception, where it was raised, and since how many seconds it is known.

    An `expected` one explains itself and has no traceback.
    """

    error: str
    activity: str
    number: int | None
    in_communication: bool
    traceback: str
    seconds: float = 0.0
    expected: bool = False


@dataclass(frozen=True)
class Heartbeat:
    """The state of one process.

    `title` names it (`rank 1`; empty until the rank is known). `quiet` is how
    many seconds ago a lane last began or ended a task. `posted` is what a process in
    which nothing moves has handed to NCCL. `done` is set in the last heartbeat:
    silence after it is no fault.
    """

    count: int
    title: str = ""
    step: int | None = None
    quiet: float = 0.0
    lanes: tuple[LaneState, ...] = ()
    failure: Failure | None = None
    done: bool = False
    posted: tuple[Posted, ...] = ()

    @property
    def computing(self) -> list[LaneState]:
        """The lanes in a task that needs no peer, longest first."""
        own = [lane for lane in self.lanes if lane.busy and not lane.activity.peers]
        return sorted(own, key=lambda lane: -lane.seconds)

    @property
    def waiting(self) -> list[LaneState]:
        """The lanes in a task that needs a peer, earliest task first."""
        shared = [lane for lane in self.lanes if lane.busy and lane.activity.peers]
        return sorted(shared, key=_task_order)

    @property
    def ended(self) -> list[LaneState]:
        """The lanes between two tasks, most recently ended first."""
        return sorted((lane for lane in self.lanes if not lane.busy), key=lambda it: it.seconds)

    def to_json(self) -> str:
        """Its JSON form in the store."""
        return to_json(self)


def heartbeat_from_json(text: str | bytes, processes: int) -> Heartbeat:
    """The inverse of `Heartbeat.to_json`.

    Raises `ValueError` for a text that none of this many processes can have sent.
    """
    heartbeat = from_json(Heartbeat, text)
    peers = {peer for lane in heartbeat.lanes for peer in lane.activity.peers} - {EVERYONE}
    peers |= {member for each in heartbeat.posted for member in each.members}
    if peers and not 0 <= min(peers) <= max(peers) < processes:
        raise ValueError(f"waits for {peers}, of {processes} processes")
    return heartbeat


def _task_order(lane: LaneState) -> tuple[bool, int]:
    number = lane.activity.number
    return number is None, number or 0

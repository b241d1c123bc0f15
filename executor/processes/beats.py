"""What a process tells the others about itself, twice a second: its beat.

Pure values, and their form as JSON in the shared store. A beat says what each
lane of the process does and for how long, so that whoever reads it can name
the task, without the graph, once the process can no longer be asked.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any


@dataclass(frozen=True)
class Limits:
    """Seconds after which the processes are no longer waited for.

    `hang`: a task that computes, a process that gives no sign of life, or a
    run in which nothing moves. `grace`: such silence, once something is known
    to be wrong; a connection that failed has twice as long for a better
    explanation, since the peer that broke it knows more. `start`: until a
    process's first beat, which comes once it has imported all that it needs.
    `beat`: between two beats.
    """

    hang: float = 60.0
    grace: float = 2.0
    start: float = 300.0
    beat: float = 0.5

    @property
    def communication(self) -> timedelta:
        """What torch may take: longer than any of these, as the watch knows whose fault it is."""
        return timedelta(seconds=max(3600.0, 10 * self.hang, 2 * self.start))


@dataclass(frozen=True)
class Activity:
    """What a lane does, in words that follow `in`: `backward of stage 3`.

    `peers` are the processes that it cannot end without: with none, it is a
    computation. `number` is the task's in the graph, to find the earliest.
    `limit` is how many seconds it may take, where that is not the run's limit.
    """

    words: str
    peers: tuple[int, ...] = ()
    number: int | None = None
    limit: float | None = None


@dataclass(frozen=True)
class LaneState:
    """A lane's activity, or its last one if not `busy`, and for how many seconds so.

    `thread` is that of the host's which is in it; 0 for what a device is in.
    """

    lane: str
    activity: Activity
    busy: bool
    seconds: float
    thread: int = 0


@dataclass(frozen=True)
class Failure:
    """An exception, where it was raised, and for how many seconds it is known.

    One that was `foreseen` says all that there is to say: it has no traceback.
    """

    error: str
    activity: str
    number: int | None
    in_communication: bool
    traceback: str
    seconds: float = 0.0
    foreseen: bool = False


@dataclass(frozen=True)
class Beat:
    """The state of one process.

    `title` names it (`rank 1`, or nothing before it has said so). `quiet` is
    for how many seconds no lane has begun or ended anything. `done` is said
    once, at the end: silence after it is no sign of trouble.
    """

    count: int
    title: str = ""
    step: int | None = None
    quiet: float = 0.0
    lanes: tuple[LaneState, ...] = ()
    failure: Failure | None = None
    done: bool = False

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
        """The lanes that are between two tasks, the last to end one first."""
        return sorted((lane for lane in self.lanes if not lane.busy), key=lambda it: it.seconds)

    def to_json(self) -> str:
        """The form in the store."""
        return json.dumps(asdict(self))


def beat_from_json(text: str | bytes) -> Beat:
    """The inverse of `Beat.to_json`."""
    fields = json.loads(text)
    fields["lanes"] = tuple(_lane_from(lane) for lane in fields["lanes"])
    if fields["failure"] is not None:
        fields["failure"] = Failure(**fields["failure"])
    return Beat(**fields)


def _lane_from(fields: dict[str, Any]) -> LaneState:
    activity = fields.pop("activity")
    activity["peers"] = tuple(activity["peers"])
    return LaneState(activity=Activity(**activity), **fields)


def _task_order(lane: LaneState) -> tuple[bool, int]:
    number = lane.activity.number
    return number is None, number or 0

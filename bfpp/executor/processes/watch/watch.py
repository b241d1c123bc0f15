"""Activities of a process: its lanes record them, its heartbeats report them to the others.

The lanes call `enter` and `leave` around each task: one store into a dict, and one
into the record that the launcher reads. There is no lock, and a task is described in
text only once; everything else is formatted only when a heartbeat is sent.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import NoReturn

from torch.distributed import DistError

from bfpp.executor.devices.out_of_memory import shortage
from bfpp.executor.processes.watch.flight_recorder import Posted
from bfpp.executor.processes.watch.heartbeats import Activity, Failure, Heartbeat, LaneState
from bfpp.executor.processes.watch.lane_record import NO_STEP, Entry, Record

Doing = int | Activity  # an int is a task's number, to be described when reported
LaneRecord = tuple[Doing, float, bool, int]  # what, since when, whether still, which thread

MAIN = "main"
NO_THREAD = 0
TRACEBACK_FRAMES = -8  # the innermost ones
NOWHERE = Activity("")
BROKEN_CONNECTION = ("Connection closed", "Connection reset", "gloo", "NCCL", "Broken pipe")


def task_number(number: int) -> Activity:
    """The description of a task before the graph is known."""
    return Activity(f"task {number}", number=number)


class Watch:
    """The activities of one process's lanes.

    `step` is set by the training loop, and to None after the last: within a step,
    a process that begins no task for long counts as stopped; outside, it may be
    slow. `expected` are errors that explain themselves, even in communication;
    `advice` is added when memory runs out.
    """

    def __init__(self, record: Record | None = None) -> None:
        self.step: int | None = None
        self.expected: tuple[type[BaseException], ...] = ()
        self.advice = ""
        self.alarm: Callable[[], None] = lambda: None  # sends the heartbeat at once
        # Before a heartbeat: for lanes that cannot report.
        self.look: Callable[[], None] = lambda: None
        # Operations posted to NCCL, by the seconds for which the process has been quiet.
        self.posted: Callable[[float], tuple[Posted, ...]] = lambda _: ()
        self._title = ""
        self._describe: Callable[[int], Activity] = task_number
        self._lanes: dict[str, LaneRecord] = {}
        self._record = record
        self._words: dict[Doing, tuple[bytes, bool]] = {}
        self._failure: tuple[Failure, float] | None = None
        self._count = 0
        self._begun = time.monotonic()

    def introduce(self, title: str, describe: Callable[[int], Activity]) -> None:
        """Set the process's title (`rank 1`) and how to describe a task by its number.

        The others learn it at once: the process may end before its next heartbeat.
        """
        self._title, self._describe = title, describe
        self._words = {}
        self.alarm()

    def enter(self, lane: str, doing: Doing) -> None:
        """The lane begins a task, in the calling thread."""
        self._set(lane, (doing, time.monotonic(), True, threading.get_ident()))

    def see(self, lane: str, doing: Doing) -> None:
        """A device's lane, which cannot report by itself, is seen in a task."""
        self._set(lane, (doing, time.monotonic(), True, NO_THREAD))

    def leave(self, lane: str) -> None:
        """The lane has ended its task."""
        doing, _, _, thread = self._lanes[lane]
        self._set(lane, (doing, time.monotonic(), False, thread))

    def _set(self, lane: str, now: LaneRecord) -> None:
        self._lanes[lane] = now
        if self._record is None:
            return
        doing, since, busy, thread = now
        words = self._words.get(doing)
        if words is None:  # each task is described once
            activity = self._activity(doing)
            words = self._words[doing] = activity.words.encode(), bool(activity.peers)
        text, waits = words
        step = NO_STEP if self.step is None else self.step
        self._record.write(lane, Entry(busy, step, since, waits, thread, text))

    @contextmanager
    def during(self, activity: Activity, lane: str = MAIN) -> Iterator[None]:
        """An activity outside the graph: building the model, saving a checkpoint.

        After an exception the lane stays in it, so that the report says where.
        """
        self.enter(lane, activity)
        yield
        self.leave(lane)

    @contextmanager
    def waiting_for(self, peers: tuple[int, ...]) -> Iterator[None]:
        """While this lasts, the calling thread's compute waits for other processes."""
        lane = self._own_lane()
        if lane is None:  # of a device, whose lanes cannot report
            yield
            return
        doing, *_ = self._lanes[lane]
        self.enter(lane, replace(self._activity(doing), peers=peers))
        yield
        self.enter(lane, doing)

    def failed(self, error: BaseException) -> NoReturn:
        """Report an exception in the thread that raised it, and wait to be ended.

        It never returns: a process that exited at once would look like the
        culprit even if it is a victim.
        """
        self.record(error)
        self.alarm()
        self.wait_to_be_ended()

    def wait_to_be_ended(self) -> NoReturn:
        """Leave it to another process, which has failed, to end the run."""
        while True:
            time.sleep(3600)

    def record(self, error: BaseException) -> None:
        """Keep an exception for the next heartbeat; only the first call counts."""
        activity = self._activity(self._own_doing())
        short = shortage(error)
        expected = isinstance(error, self.expected) or short is not None
        text = str(error) if expected else f"{type(error).__name__}: {error}".strip()
        if short is not None:
            text = "; ".join(filter(None, [short, self.advice]))
        # An expected error may follow from a lost connection: a save that another process left.
        origin = error.__cause__ if expected else error
        broken = origin is not None and _is_broken_connection(origin, activity)
        frames = traceback.format_exception(error, limit=TRACEBACK_FRAMES)
        failure = Failure(
            text.partition("\n")[0],
            activity.words,
            activity.number,
            in_communication=broken,
            traceback="" if expected else "".join(frames),
            expected=expected,
        )
        self._failure = self._failure or (failure, time.monotonic())

    @property
    def has_failed(self) -> bool:
        """True once `failed` was called."""
        return self._failure is not None

    def heartbeat(self, done: bool = False) -> Heartbeat:
        """The current state of the process."""
        with suppress(Exception):  # whoever uses the device will raise it too
            self.look()
        self._count += 1
        now = time.monotonic()
        lanes = list(self._lanes.items())  # lanes may come while this thread reads
        failure = self._failure
        quiet = now - max((since for _, (_, since, _, _) in lanes), default=self._begun)
        return Heartbeat(
            self._count,
            self._title,
            self.step,
            quiet,
            tuple(
                LaneState(lane, self._activity(doing), busy, now - since, thread)
                for lane, (doing, since, busy, thread) in lanes
            ),
            failure and replace(failure[0], seconds=now - failure[1]),
            done,
            self.posted(quiet),
        )

    def _own_doing(self) -> Doing:
        """The activity that the calling thread is in."""
        lane = self._own_lane()
        return NOWHERE if lane is None else self._lanes[lane][0]

    def _own_lane(self) -> str | None:
        """The lane that the calling thread is busy in."""
        thread = threading.get_ident()
        records = list(self._lanes.items())
        return next((lane for lane, (_, _, busy, by) in records if busy and by == thread), None)

    def _activity(self, doing: Doing) -> Activity:
        if isinstance(doing, Activity):
            return doing
        try:
            return self._describe(doing)
        except Exception:  # a missing description must not stop the heartbeats
            return task_number(doing)


def _is_broken_connection(error: BaseException, activity: Activity) -> bool:
    """Test for the error that torch raises when another process may be at fault."""
    is_waiting = bool(activity.peers) and isinstance(error, RuntimeError)
    words = any(word in str(error) for word in BROKEN_CONNECTION)
    return is_waiting or isinstance(error, DistError) or words

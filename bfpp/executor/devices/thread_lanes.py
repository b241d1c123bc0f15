"""Lanes on a CPU: queues, and threads that take whichever of them can go on.

Theory of operation. A lane is ready while there is something next that it need not wait for. A
thread takes a ready lane and goes on with it, item after item, until none is left or the next is
a mark that was not passed yet. There the lane stays behind with the mark, and is ready again when
another passes it. So a lane that waits holds no thread; and a thread that has passed a mark takes
on those who waited, unless another thread is free while it is busy with an action. Waking a
thread costs more than most tasks of small stages do.

What blocks, as gloo's messages do, blocks a thread: with as many threads as lanes, it holds up
nobody else. Where nothing blocks but the cores, as many threads as there are cores suffice.

Lanes change threads, and what one allocates another frees. So all threads have one heap: with one
each, as glibc gives them, a step takes new memory where the last one's lies in another heap. The
heap keeps what is freed: glibc gives back what lies free at its end, so that each step would fault
pages in again, the more the more activations its schedule keeps alive at once.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Event, Lock, Thread

Action = Callable[[], None]
Item = tuple["ThreadMark | None", Action | None, "ThreadMark | None"]
"""A mark to wait for, or an action, or a mark to pass."""


HEAP = {"arena_max": (-8, 1), "trim_threshold": (-1, -1), "mmap_threshold": (-3, 32 << 20)}
"""glibc's tunables, with `mallopt`'s number and a value.

The most heaps that threads are given; the bytes that are free at a heap's end when they are given
back, or never; and from which size on a block is no part of a heap, the largest that glibc allows.
"""


def share_heap() -> None:
    """Let threads allocate from one heap that keeps what is freed, unless the user has decided."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it
    if mallopt is None:
        return
    given = os.getenv("GLIBC_TUNABLES", "")
    for name, (parameter, value) in HEAP.items():
        variable = f"MALLOC_{name.upper()}"
        if name not in given and not {variable, f"{variable}_"} & os.environ.keys():
            mallopt(parameter, value)


class ThreadMark:
    """A point that a lane comes to, and the lanes that wait for it."""

    __slots__ = ("is_passed", "waiting", "when")

    def __init__(self) -> None:
        self.is_passed = False
        self.waiting: list[ThreadLane] = []
        self.when = 0.0

    def passed(self) -> bool:
        """True once the lane has passed it."""
        return self.is_passed

    def seconds(self) -> float:
        """Seconds at which the lane passed it."""
        return self.when


class ThreadLane:
    """An in-order queue: of actions, of marks to pass, and of marks to wait for."""

    __slots__ = ("crew", "is_idle", "items")

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.items: deque[Item] = deque()
        self.is_idle = True

    def wait(self, mark: object) -> None:
        """Let later actions wait for another lane."""
        assert isinstance(mark, ThreadMark)  # noqa: S101
        if not mark.is_passed:
            self._put((mark, None, None))

    def mark(self, timed: bool = False) -> ThreadMark:
        """A mark at this point."""
        del timed  # it costs nothing
        mark = ThreadMark()
        self._put((None, None, mark))
        return mark

    def run(self, action: Action) -> None:
        """Run an action at this point."""
        self._put((None, action, None))

    def _put(self, item: Item) -> None:
        self.items.append(item)
        if self.is_idle and self.begins():
            self.crew.ready.put(self)

    def begins(self) -> bool:
        """Test for work on a lane that was idle; true once."""
        with self.crew.lock:
            begins = self.is_idle and bool(self.items)
            self.is_idle &= not begins
        return begins

    def close(self) -> None:
        """End the lane: nothing more comes."""
        self.crew.leave(self)


class Crew:
    """The threads of a process, and the lanes that are ready for them."""

    patience = 0.05
    """Seconds between two looks of the host at whether a lane has failed."""

    def __init__(self, most: int | None = None) -> None:
        share_heap()
        self.most = most
        self.error: BaseException | None = None
        self.lock = Lock()
        self.ready: SimpleQueue[ThreadLane | None] = SimpleQueue()
        self.lanes: set[ThreadLane] = set()
        self.threads: list[Thread] = []

    def lane(self) -> ThreadLane:
        """A new lane, and a thread if there may be one more."""
        self.lanes.add(lane := ThreadLane(self))
        if len(self.threads) < (self.most or len(self.lanes)):
            self.threads.append(thread := Thread(target=self._work, daemon=True))
            thread.start()
        return lane

    def leave(self, lane: ThreadLane) -> None:
        """End the threads with the last lane."""
        self.lanes.discard(lane)
        if not self.lanes:
            for _ in self.threads:
                self.ready.put(None)
            # One that is stuck in a message never ends; as a daemon it does not keep the process.
            for thread in self.threads:
                thread.join(self.patience)

    def finish(self, marks: Sequence[object]) -> None:
        """Let the host wait for all marks; raises the error of the lane that failed first."""
        done, host = Event(), ThreadLane(self)
        for mark in marks:
            host.wait(mark)
        host.run(done.set)
        while not done.wait(self.patience):
            if self.error is not None:
                raise self.error

    def _work(self) -> None:
        ready: list[ThreadLane] = []
        while lane := ready.pop() if ready else self.ready.get():
            try:
                self._go_on(lane, ready)
            except BaseException as error:
                self.error = self.error or error

    def _go_on(self, lane: ThreadLane, ready: list[ThreadLane]) -> None:
        """Run a lane as far as it can go; lanes that become ready by it go to `ready`."""
        while self.error is None:
            try:
                awaited, action, passed = lane.items.popleft()
            except IndexError:
                lane.is_idle = True
                if lane.begins():  # something was put there in between
                    continue
                return
            if awaited is not None:
                if self._waits(lane, awaited):
                    return
            elif action is not None:
                while ready:
                    self.ready.put(ready.pop())
                action()
            elif passed is not None:
                passed.when = time.perf_counter()
                with self.lock:
                    passed.is_passed = True
                    ready += passed.waiting

    def _waits(self, lane: ThreadLane, mark: ThreadMark) -> bool:
        """Test for a mark that was not passed yet; if so, leave the lane with it."""
        with self.lock:
            if not mark.is_passed:
                mark.waiting.append(lane)
            return not mark.is_passed

"""Lanes, and all that differs between devices.

A lane is an in-order queue. What is put on it (waits, marks, actions) runs in
that order, some time after it was put there, beside the other lanes. On a CPU
a lane is a worker thread; on a GPU it is a CUDA stream, and an action is run at
once by the host, which queues its kernels on the stream.

Memory that passes from lane to lane is lent by a `Pool`: a tensor that is given
back is lent again only to lanes that wait for what was still done with it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Protocol

import torch
from torch import Tensor

from executor.model import Shape

Action = Callable[[], None]
NOTHING_RUNS = -1
"""In place of a task's number."""


class Stopped(Exception):
    """A lane gives up, since the run has failed elsewhere."""


class Mark(Protocol):
    """A point that a lane comes to."""

    def seconds(self) -> float:
        """When it was passed, on this process's clock; once it was."""
        ...


class Lane(Protocol):
    """One in-order queue of a rank."""

    def wait(self, mark: Mark) -> None:
        """Let what follows wait until another lane has passed a mark."""
        ...

    def mark(self) -> Mark:
        """A mark at this point."""
        ...

    def run(self, action: Action) -> None:
        """Run an action at this point."""
        ...

    def close(self) -> None:
        """End, once all that was put on it is done."""
        ...


class Device(Protocol):
    """Where tensors live, and how lanes are made there."""

    @property
    def device(self) -> torch.device:
        """Torch's name for it."""
        ...

    def lane(self, name: str) -> Lane:
        """A new lane."""
        ...

    def load(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """What is in the host's memory, on the lane whose action runs, without waiting for it."""
        ...

    def here(self) -> Mark | None:
        """A mark on the lane whose action runs; None where actions end before they return."""
        ...

    def after(self, mark: Mark | None) -> None:
        """Let the lane whose action runs wait for a mark."""
        ...

    def finish(self, marks: list[Mark]) -> None:
        """Wait on the host until all marks are passed; raises what an action raised."""
        ...

    def settle(self) -> None:
        """Wait on the host for what was done outside of lanes, before lanes build on it."""
        ...


# On a CPU: a thread for each lane


class ThreadMark:
    """A point that a worker thread comes to."""

    __slots__ = ("passed", "when")

    def __init__(self) -> None:
        self.passed = Event()
        self.when = 0.0

    def set(self) -> None:
        """The lane is here."""
        self.when = time.perf_counter()
        self.passed.set()

    def seconds(self) -> float:
        """When the lane was here."""
        return self.when


class ThreadLane:
    """A worker thread that runs what it is given, in order."""

    def __init__(self, name: str, device: Threads) -> None:
        self.device = device
        self.queue: SimpleQueue[Action | None] = SimpleQueue()
        self.thread = Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    def wait(self, mark: Mark) -> None:
        """Let what follows wait for another lane."""
        assert isinstance(mark, ThreadMark)  # noqa: S101
        self.queue.put(lambda: self.device.wait(mark))

    def mark(self) -> ThreadMark:
        """A mark at this point."""
        mark = ThreadMark()
        self.queue.put(mark.set)
        return mark

    def run(self, action: Action) -> None:
        """Run an action in the thread."""
        self.queue.put(action)

    def close(self) -> None:
        """End the thread once its queue is empty."""
        self.queue.put(None)
        self.thread.join(self.device.patience)

    def _work(self) -> None:
        while (action := self.queue.get()) is not None:
            try:
                action()
            except Stopped:
                return
            except BaseException as error:
                self.device.fail(error)
                return


class Threads:
    """A CPU whose lanes are threads."""

    device = torch.device("cpu")
    patience = 0.05
    """Seconds between two looks at whether another lane has failed."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.failed = Event()

    def lane(self, name: str) -> ThreadLane:
        """A new thread."""
        return ThreadLane(name, self)

    def load(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """It is there."""
        return tensor.to(dtype)

    def here(self) -> None:
        """Nothing: an action has ended when it returns."""

    def after(self, mark: Mark | None) -> None:
        """Nothing to wait for."""

    def settle(self) -> None:
        """Nothing to wait for."""

    def fail(self, error: BaseException) -> None:
        """Let every lane give up; the first error is the one that counts."""
        if self.error is None:
            self.error = error
        self.failed.set()

    def wait(self, mark: ThreadMark) -> None:
        """Wait for a mark; raises `Stopped` if it will not be passed."""
        while not mark.passed.wait(self.patience):
            if self.failed.is_set():
                raise Stopped

    def finish(self, marks: list[Mark]) -> None:
        """Wait for all marks; raises the error of the lane that failed first."""
        try:
            for mark in marks:
                assert isinstance(mark, ThreadMark)  # noqa: S101
                self.wait(mark)
        except Stopped:
            assert self.error is not None  # noqa: S101
            raise self.error from None


# On a GPU: a CUDA stream for each lane


class StreamMark:
    """A CUDA event; times are relative to one whose time on the host's clock is known."""

    def __init__(self, event: torch.cuda.Event, device: Streams) -> None:
        self.event = event
        self.device = device

    def seconds(self) -> float:
        """When the stream was here."""
        since_origin: float = self.device.origin.elapsed_time(self.event)
        return self.device.origin_seconds + since_origin / 1e3


class StreamLane:
    """A CUDA stream."""

    def __init__(self, device: Streams) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device.device)

    def wait(self, mark: Mark) -> None:
        """Let what follows wait for another stream."""
        assert isinstance(mark, StreamMark)  # noqa: S101
        self.stream.wait_event(mark.event)

    def mark(self) -> StreamMark:
        """An event at this point."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self.stream)
        return StreamMark(event, self.device)

    def run(self, action: Action) -> None:
        """Queue the kernels of an action on the stream."""
        with torch.cuda.stream(self.stream):
            action()

    def close(self) -> None:
        """Wait for what was queued."""
        self.stream.synchronize()


class Streams:
    """A GPU whose lanes are streams.

    Times are told from an event not long ago, the origin: CUDA tells the time
    between two events in single precision, which after an hour is too coarse.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        torch.cuda.set_device(device)
        self.settle()

    def lane(self, name: str) -> StreamLane:
        """A new stream."""
        del name
        return StreamLane(self)

    def load(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """A copy from pinned memory: from any other, the host would wait for the whole stream."""
        return tensor.to(dtype).pin_memory().to(self.device, non_blocking=True)

    def here(self) -> StreamMark:
        """An event on the stream that is in use."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return StreamMark(event, self)

    def after(self, mark: Mark | None) -> None:
        """Let the stream in use wait for an event."""
        if isinstance(mark, StreamMark):
            torch.cuda.current_stream(self.device).wait_event(mark.event)

    def finish(self, marks: list[Mark]) -> None:
        """Synchronise with the events; the first is the next origin."""
        passed = [mark for mark in marks if isinstance(mark, StreamMark)]
        for mark in passed:
            mark.event.synchronize()
        self.origin_seconds, self.origin = passed[0].seconds(), passed[0].event

    def settle(self) -> None:
        """Wait for all streams, and read both clocks."""
        torch.cuda.synchronize(self.device)
        self.origin = torch.cuda.Event(enable_timing=True)
        self.origin.record(torch.cuda.current_stream(self.device))
        self.origin.synchronize()
        self.origin_seconds = time.perf_counter()


class Pool:
    """Tensors of a few shapes that lanes lend one another."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.free: dict[Shape, deque[tuple[Tensor, Mark | None]]] = {}
        self.lent: dict[int, Shape] = {}

    def take(self, shape: Shape) -> Tensor:
        """A tensor that nobody uses: the one that was given back the longest ago, or a new one."""
        try:
            tensor, given_back = self.free[shape].popleft()
        except (KeyError, IndexError):
            tensor = torch.empty(shape.size, dtype=shape.dtype, device=self.device.device)
        else:
            self.device.after(given_back)
        self.lent[id(tensor)] = shape
        return tensor

    def give(self, tensor: Tensor) -> None:
        """Give a tensor back, if it is the pool's: the lane whose action runs needs it no more."""
        shape = self.lent.pop(id(tensor), None)
        if shape is not None:
            self.free.setdefault(shape, deque()).append((tensor, self.device.here()))

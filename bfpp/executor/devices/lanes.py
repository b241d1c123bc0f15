"""Lanes: in-order queues of waits, marks and actions, and the differences between devices.

Theory of operation. What is put on a lane runs in that order, some time after it was put there, in
parallel with other lanes; only waits for marks order two lanes. On a CPU a lane is a queue that
threads take turns at (`bfpp.executor.devices.thread_lanes`). A thread bound to each lane was given
up: waking one costs more than most tasks of small stages. On a GPU a lane is a CUDA stream, a mark
is an event, and an action is run at once by the host, which queues its kernels on the stream.

Invariants:

- During training the host waits for a device in `finish` alone, to report a step that is done.
- Batches are copied from pinned memory, for which the host need not wait, and on a stream of their
  own, which does not wait for the step before.
- The event of a mark that is no longer needed (`after`, `reuse`) is recorded again.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from bfpp.executor.devices.cuda_events import Events, StreamMark
from bfpp.executor.devices.thread_lanes import Action, Crew, ThreadLane


class Mark(Protocol):
    """A point that a lane comes to."""

    def passed(self) -> bool:
        """True once the lane has passed it."""

    def seconds(self) -> float:
        """Seconds on this process's clock at which it was passed; once it was."""


class LaneQueue(Protocol):
    """One in-order queue of a rank."""

    def wait(self, mark: Mark) -> None:
        """Let later actions wait until another lane has passed a mark."""

    def mark(self, timed: bool = False) -> Mark:
        """A mark at this point; only one that is `timed` need know when it was passed."""

    def run(self, action: Action) -> None:
        """Run an action at this point."""

    def close(self) -> None:
        """End, once all that was put on it is done."""


class DeviceRuntime(Protocol):
    """A device runtime: where tensors live, and how lanes are made there."""

    @property
    def device(self) -> torch.device:
        """Torch's name for it."""

    @property
    def is_asynchronous(self) -> bool:
        """True if actions end after they return."""

    def lane(self, name: str, is_urgent: bool = False) -> LaneQueue:
        """A new lane; what is `is_urgent` does not queue behind work of lanes that are not."""

    def load(self, value: Tensor) -> Tensor:
        """A tensor of the host's, for the lane whose action runs."""

    def on_host(self, size: int) -> Tensor:
        """Bytes of the host's memory, which lanes copy to and from as they compute."""

    def begin(self) -> Mark | None:
        """Begin a step: set the clock, and mark work done here outside the lanes.

        None where what was done has ended.
        """

    def here(self) -> Mark | None:
        """A mark on the lane whose action runs; None where actions end before they return."""

    def after(self, mark: Mark | None) -> None:
        """Let the lane whose action runs wait for a mark, which is not needed after that."""

    def reuse(self, marks: list[Mark]) -> None:
        """Recycle marks that are no longer needed."""

    def finish(self, marks: list[Mark]) -> None:
        """Wait on the host until all marks are passed; raises an action's error."""


# On a CPU: threads that take turns at the lanes


class Threads:
    """A CPU whose lanes are run by threads: as many as lanes, unless fewer are enough."""

    device = torch.device("cpu")
    is_asynchronous = False

    def __init__(self, most: int | None = None) -> None:
        self.crew = Crew(most)

    def lane(self, name: str, is_urgent: bool = False) -> ThreadLane:
        """A new lane; threads take turns at all alike."""
        del name, is_urgent
        return self.crew.lane()

    def load(self, value: Tensor) -> Tensor:
        """The tensor itself, if it is here."""
        return value.to(self.device)

    def on_host(self, size: int) -> Tensor:
        """Ordinary memory."""
        return torch.empty(size, dtype=torch.uint8)

    def begin(self) -> None:
        """The host's clock is the device's, and nothing is under way outside the lanes."""

    def here(self) -> None:
        """No mark: an action has ended when it returns."""

    def after(self, mark: Mark | None) -> None:
        """No wait."""

    def reuse(self, marks: list[Mark]) -> None:
        """A new mark costs as little."""

    def finish(self, marks: list[Mark]) -> None:
        """Wait for all marks; raises the error of the lane that failed first."""
        self.crew.finish(marks)


# On a GPU: a CUDA stream for each lane


USUAL, URGENT, CLOCK = 0, -1, -2
"""Priorities of streams: of passes, of communication and copies, and of the clock alone.

A GPU begins blocks of urgent kernels first. One of communication would otherwise wait until all
blocks of the passes that were queued before it have begun, while other ranks wait for it.
"""


class StreamLane:
    """A CUDA stream."""

    def __init__(self, device: Streams, priority: int = USUAL) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device.device, priority=priority)

    def wait(self, mark: Mark) -> None:
        """Let later kernels wait for another stream."""
        assert isinstance(mark, StreamMark)  # noqa: S101
        self.stream.wait_event(mark.event)

    def mark(self, timed: bool = False) -> StreamMark:
        """An event at this point."""
        return self.device.events.mark(self.stream, timed)

    def run(self, action: Action) -> None:
        """Queue the kernels of an action on the stream."""
        with torch.cuda.stream(self.stream):
            action()

    def close(self) -> None:
        """Wait for all queued work."""
        self.stream.synchronize()


class Streams:
    """A GPU whose lanes are streams."""

    is_asynchronous = True

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        # Torch hands out a few streams of each priority in turn: of this one no lane has any.
        clock = torch.cuda.Stream(self.device, priority=CLOCK)
        self.loading = torch.cuda.Stream(self.device)
        torch.cuda.synchronize(self.device)
        self.events = Events(clock)

    def lane(self, name: str, is_urgent: bool = False) -> StreamLane:
        """A new stream."""
        del name
        return StreamLane(self, URGENT if is_urgent else USUAL)

    def load(self, value: Tensor) -> Tensor:
        """A copy, which the host does not wait for: that takes memory that cannot be moved.

        It is on a stream of its own, so that it need not wait for the step before.
        """
        if value.device.type == "cpu":
            value = value.pin_memory()
        with torch.cuda.stream(self.loading):
            loaded = value.to(self.device, non_blocking=True)
            copied = self.here()
        self.after(copied)
        # Its memory is the loading stream's, which could have it again while this one reads it.
        loaded.record_stream(torch.cuda.current_stream(self.device))
        return loaded

    def on_host(self, size: int) -> Tensor:
        """Memory that cannot be moved: the host waits for copies of any other."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def begin(self) -> StreamMark:
        """Look at the clock, and mark the stream in use outside the lanes."""
        self.events.begin()
        return self.here()

    def here(self) -> StreamMark:
        """An event on the stream that is in use."""
        return self.events.mark(torch.cuda.current_stream(self.device))

    def after(self, mark: Mark | None) -> None:
        """Let the stream in use wait for an event."""
        if isinstance(mark, StreamMark):
            torch.cuda.current_stream(self.device).wait_event(mark.event)
            self.events.reuse([mark])

    def reuse(self, marks: list[Mark]) -> None:
        """Their events are recorded again."""
        self.events.reuse([mark for mark in marks if isinstance(mark, StreamMark)])

    def finish(self, marks: list[Mark]) -> None:
        """Synchronise with the events."""
        for mark in marks:
            assert isinstance(mark, StreamMark)  # noqa: S101
            mark.event.synchronize()

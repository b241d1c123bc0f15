"""CUDA events as marks, and their reuse.

Making an event costs more than recording it, so events are made once and recorded
again when the step that they were made for is over. That is safe for a stream that
waits for one: it waits for what the event stood for when the wait was queued. Only
a timed event costs the device a time stamp.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Origin:
    """A CUDA event, and when it was on the host's clock."""

    event: torch.cuda.Event
    seconds: float


@dataclass(frozen=True)
class StreamMark:
    """A CUDA event; if it is timed, with an earlier one to measure its time from.

    CUDA measures the time between events in single precision, and by a clock of
    its own, so the origin must not be long ago.
    """

    event: torch.cuda.Event
    origin: Origin | None = None

    def passed(self) -> bool:
        """True once the stream has passed it."""
        done: bool = self.event.query()
        return done

    def seconds(self) -> float:
        """Seconds at which the stream passed it."""
        assert self.origin is not None  # noqa: S101
        since_origin: float = self.origin.event.elapsed_time(self.event)
        return self.origin.seconds + since_origin / 1e3


class Events:
    """Events that are no longer queried, to be recorded again."""

    def __init__(self, clock: torch.cuda.Stream) -> None:
        self.clock = clock
        self.spare: dict[bool, list[torch.cuda.Event]] = {True: [], False: []}
        self.origin = self._now()

    def begin(self) -> None:
        """Set the origin of the clock: later times are relative to now."""
        self.origin = self._now()

    def mark(self, stream: torch.cuda.Stream, timed: bool = False) -> StreamMark:
        """An event at this point of a stream."""
        event = self._event(timed)
        event.record(stream)
        return StreamMark(event, self.origin if timed else None)

    def reuse(self, marks: list[StreamMark]) -> None:
        """Recycle the events of marks that are no longer needed."""
        over = {id(mark.origin): mark.origin for mark in marks if mark.origin}
        for mark in marks:
            self.spare[mark.origin is not None].append(mark.event)
        self.spare[True].extend(
            origin.event for origin in over.values() if origin is not self.origin
        )

    def _event(self, timed: bool) -> torch.cuda.Event:
        spare = self.spare[timed]
        return spare.pop() if spare else torch.cuda.Event(enable_timing=timed)

    def _now(self) -> Origin:
        """An event on a stream with nothing else to do, so that it does not wait."""
        event = self._event(timed=True)
        event.record(self.clock)
        event.synchronize()
        return Origin(event, time.perf_counter())

"""End of a search: after its time, or on Ctrl-C, with the best result so far."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, current_thread, main_thread
from types import FrameType

_INTERRUPTED = Event()


class Deadline:
    """Some seconds from now, or the first Ctrl-C before that."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._over = seconds, time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds, at least 0."""
        return 0.0 if _INTERRUPTED.is_set() else max(self._over - time.monotonic(), 0.0)

    @property
    def passed(self) -> float:
        """The share of the time that is over."""
        return 1 - self.left / self._seconds if self._seconds > 0 else 1.0


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C only expires all deadlines; yields a check of whether it has come.

    A second one is handled as before. Nothing changes where Ctrl-C is ignored, or in other threads
    than the main one, which alone receives signals.
    """
    before = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or not callable(before):
        yield _INTERRUPTED.is_set
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        _INTERRUPTED.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield _INTERRUPTED.is_set
    finally:
        signal.signal(signal.SIGINT, before)
        _INTERRUPTED.clear()

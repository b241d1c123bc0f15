"""Graceful end of a run by SIGTERM.

- Before the first step is done, and for an entry that cannot stop gracefully, it
  ends the run at once: there is nothing to save.
- After that the run stops gracefully. The process that gets the signal marks its
  `Stop`; all processes agree at the end of each step (`bfpp.executor.train.trainer`), so
  that they stop after the same step, save, and say so.
- A second signal ends the run at once. One that arrives together with the first does
  not count: SLURM signals every process of a job, and a launcher forwards its signal.

Our own launcher forwards the signal to its processes. Those of torchrun get it
directly, and have 30 seconds before torchrun kills them.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch.distributed import Store

from bfpp.executor.processes.sealed_store import peek
from bfpp.executor.processes.watch.watchdog import Watchdog

OFFERED, OFFER = "stops", "after a step"
ECHO = 1.0
"""Seconds within which a second SIGTERM counts as the same request."""

STOPPED = 128 + signal.SIGTERM
"""The exit code of a run that SIGTERM ended."""


class Terminated(SystemExit):
    """SIGTERM ended a run at once."""

    def __init__(self) -> None:
        super().__init__(int(STOPPED))


class Stop:
    """Requests to stop a process, of which there may be two."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self.is_urgent = False

    @property
    def asked(self) -> bool:
        """True if the run should stop after the current step."""
        return self._since is not None

    def ask(self) -> None:
        """Note a SIGTERM."""
        if self._since is None:
            self._since = self._clock()
        elif self._clock() > self._since + ECHO:
            self.is_urgent = True


def offer(store: Store) -> None:
    """Announce, from the first process, that a step is done, and so there is state to save."""
    store.set(OFFERED, OFFER)


def is_offered(store: Store) -> bool:
    """True if the run stops gracefully when asked to."""
    return peek(store, OFFERED) == OFFER.encode()


@contextmanager
def sigterm_asks(stop: Stop) -> Iterator[None]:
    """Note SIGTERM in a parent, unless the caller has a handler of its own."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda *_: stop.ask())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def signals_to(watchdog: Watchdog, numbers: Sequence[int]) -> Iterator[None]:
    """Pass signals to the watchdog, even while the main thread is stuck in gloo."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    # Python writes signals to the descriptor that it has a handler for, if one that does nothing.
    for number in before:
        signal.signal(number, lambda *_: None)
    descriptor = signal.set_wakeup_fd(watchdog.bell, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)

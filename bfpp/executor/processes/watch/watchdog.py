"""The thread that sends a process's heartbeats and ends the process when it must.

A separate thread can do so while the lanes are stuck in gloo or in a kernel; it
ends the process with `os._exit`, which waits for nothing. After each heartbeat it
calls `look`: a child of our own launcher checks that its parent is alive, a
process of torchrun diagnoses the run.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from torch.distributed import DistError, Store

from bfpp.executor.processes.watch.heartbeats import Limits
from bfpp.executor.processes.watch.observer import heartbeat_key
from bfpp.executor.processes.watch.watch import Watch

LOST = -1  # what `look` gets once the store no longer answers


class Watchdog:
    """The watchdog of the process `process`; `look` gets the signal that came, 0, or `LOST`."""

    def __init__(
        self, process: int, watch: Watch, store: Store, limits: Limits, look: Callable[[int], None]
    ) -> None:
        self._key = heartbeat_key(process)
        self._watch = watch
        self._store = store
        self._limits = limits
        self._look = look
        self._done = False
        self._bell, self._heard = socket.socketpair()
        self._bell.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    @property
    def bell(self) -> int:
        """The descriptor that wakes the watchdog: `signal.set_wakeup_fd` writes signals to it."""
        return self._bell.fileno()

    def start(self) -> None:
        """Send the first heartbeat and continue in the background."""
        self._watch.alarm = self._ring
        self._send(done=False)
        self._thread.start()

    def finish(self) -> None:
        """Send a last heartbeat that says the process is done."""
        self._done = True
        self._ring()
        self._thread.join()
        self._store.check([self._key])  # an answer: the heartbeat has arrived
        self._bell.close()
        self._heard.close()

    def _ring(self) -> None:
        with suppress(BlockingIOError):  # full: it is awake already
            self._bell.send(b"\0")

    def _run(self) -> None:
        try:
            done = False
            while not done:
                signal = self._sleep()
                done = self._done  # read once: the last heartbeat must be the one that says so
                self._send(done)
                self._look(signal)
        except DistError:
            # The store is gone, and so is its host.
            self._look(LOST)
        except BaseException as error:
            self._watch.record(error)
            self._send(done=False)

    def _sleep(self) -> int:
        """Wait for the next heartbeat or the bell; returns the signal that rang it, or 0."""
        heard, _, _ = select.select([self._heard], [], [], self._limits.heartbeat)
        # Several may have rung: a signal counts more than our own 0, SIGTERM more than SIGINT.
        return max(self._heard.recv(64)) if heard else 0

    def _send(self, done: bool) -> None:
        self._store.set(self._key, self._watch.heartbeat(done).to_json())

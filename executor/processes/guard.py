"""The thread that sends a process's beats and ends the process when it must.

It is a thread of its own, so that it does both while the lanes are stuck in
gloo or in a kernel, and ends the process with `os._exit`, which asks nobody.
What it looks at after each beat is `look`'s: a child of our own launcher only
sees whether its parent lives, a process of torchrun's has to judge.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from torch.distributed import DistError, Store

from bfpp.executor.processes.beats import Limits
from bfpp.executor.processes.observer import beat_key
from bfpp.executor.processes.watch import Watch

LOST = -1  # what `look` gets where the store does not answer any more


class Guard:
    """The guard of the process `process`; `look` gets the signal that came, 0, or `LOST`."""

    def __init__(
        self, process: int, watch: Watch, store: Store, limits: Limits, look: Callable[[int], None]
    ) -> None:
        self._key = beat_key(process)
        self._watch = watch
        self._store = store
        self._limits = limits
        self._look = look
        self._done = False
        self._bell, self._heard = socket.socketpair()
        self._bell.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)

    @property
    def bell(self) -> int:
        """The descriptor that wakes the guard: `signal.set_wakeup_fd` writes signals to it."""
        return self._bell.fileno()

    def start(self) -> None:
        """Sends the first beat and goes on by itself."""
        self._watch.alarm = self._ring
        self._send(done=False)
        self._thread.start()

    def finish(self) -> None:
        """Says in a last beat that the process is done."""
        self._done = True
        self._ring()
        self._thread.join()
        self._store.check([self._key])  # an answer: the beat has arrived
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
                done = self._done  # read once: the last beat must be the one that says so
                self._send(done)
                self._look(signal)
        except DistError:
            # The store is gone, and with it whoever hosts it.
            self._look(LOST)
        except BaseException as error:
            self._watch.record(error)
            self._send(done=False)

    def _sleep(self) -> int:
        """Until the next beat is due or the bell rings; the signal that rang it, or 0."""
        heard, _, _ = select.select([self._heard], [], [], self._limits.beat)
        return max(self._heard.recv(64)) if heard else 0

    def _send(self, done: bool) -> None:
        self._store.set(self._key, self._watch.beat(done).to_json())

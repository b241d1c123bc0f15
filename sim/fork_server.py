"""The server that workers are forked off, on systems that have one: it imports for all of them.

A command that will need workers starts it first, and imports its own modules while the server
imports those of workers. So this module imports next to nothing.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from multiprocessing import forkserver, get_all_start_methods, resource_tracker
from typing import Any

METHOD = "forkserver" if "forkserver" in get_all_start_methods() else None
"""How processes are started: forked off a server, or by the default where there is none."""

LOOPS = "bfpp.sim.loaded"
"""What workers import that have much to simulate: it loads the compiled loops."""


_SERVER: Any = vars(forkserver)["_forkserver"]

if METHOD:  # what is forked off this process cannot wait for its server, and needs one of its own
    os.register_at_fork(after_in_child=_SERVER.__init__)


def start(module: str = LOOPS) -> None:
    """Begin the server, unless it runs; it imports a module before it forks anything.

    Interruptions are blocked for it and for what it forks: in its imports it would be interrupted
    before any code of ours runs in it.
    """
    if METHOD is None:
        return
    forkserver.set_forkserver_preload(["__main__", module])
    resource_tracker.ensure_running()  # the server would begin it, and it unblocks interruptions
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop() -> None:
    """End the server, if it runs: at once, as it may have a second of imports before it."""
    if _SERVER._forkserver_pid is not None:
        with suppress(ProcessLookupError, ChildProcessError):  # SIGCHLD may be ignored
            os.kill(_SERVER._forkserver_pid, signal.SIGKILL)
            _SERVER._stop()

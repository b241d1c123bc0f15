"""The server that workers are forked off, on systems that have one: it imports for all of them.

A command that will need workers imports what they need, too, and forks the server off itself: that
one loads the loops while the command imports the rest. So this module imports next to nothing.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import pairwise
from multiprocessing import forkserver, get_all_start_methods, resource_tracker, util
from typing import Any

from bfpp.sim.search.safe_path import safe_path

METHOD = "forkserver" if "forkserver" in get_all_start_methods() else None
"""How processes are started: forked off a server, or by the default where there is none."""

LOOPS = "bfpp.sim.search.warm_up"
"""What workers import that have much to simulate: it loads the compiled loops."""

STANDARD, MOST_FILES = range(3), 1024
"""The files that any process has, and more than are open when a command begins."""

_SERVER: Any = vars(forkserver)["_forkserver"]
_PROCESSES: Any = util

if METHOD:  # what is forked off this process cannot wait for its server, and needs one of its own
    os.register_at_fork(after_in_child=_SERVER.__init__)


def start(module: str = LOOPS, *, forked: bool = False) -> None:
    """Begin the server, unless it runs; it imports a module before it forks anything.

    Interruptions are blocked for it and for what it forks: in its imports it would be interrupted
    before any code of ours runs in it. If it is `forked` off this process, which must have no other
    threads, it imports nothing that this one has.
    """
    if METHOD is None:
        return
    forkserver.set_forkserver_preload(["__main__", module])
    with safe_path():
        resource_tracker.ensure_running()  # the server would, and it unblocks interruptions
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with _forks() if forked else nullcontext():
                forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _forks() -> Iterator[None]:
    """Let Python fork its server off this process, where it would start a new one."""
    starts, _PROCESSES.spawnv_passfds = _PROCESSES.spawnv_passfds, _fork
    try:
        yield
    finally:
        _PROCESSES.spawnv_passfds = starts


def _fork(_: bytes, arguments: Sequence[str], files: Sequence[int]) -> int:
    """A fork that runs the program after `-c` and has, as a new process would, only some files."""
    gc.freeze()  # to look for garbage would copy what the two share
    if process := os.fork():
        return process
    try:
        for kept, following in pairwise(sorted({*STANDARD, *files, MOST_FILES})):
            os.closerange(kept + 1, following)
        exec(arguments[-1], {})  # noqa: S102
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def stop() -> None:
    """End the server, if it runs: at once, as it may have imports before it."""
    if _SERVER._forkserver_pid is not None:
        with suppress(ProcessLookupError, ChildProcessError):  # SIGCHLD may be ignored
            os.kill(_SERVER._forkserver_pid, signal.SIGKILL)
            _SERVER._stop()

"""A process of our own launcher, after `bfpp.executor.__main__` has started it.

It ends with its parent, however the parent ends: the kernel is asked to kill it,
or, on systems without that, its watchdog notices that the parent is gone.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
import sys
from functools import partial
from pathlib import Path

from torch.distributed import Store

from bfpp.executor.events import Message
from bfpp.executor.processes.launcher.process import take_part
from bfpp.executor.processes.launcher.process_context import (
    FOREVER,
    ProcessContext,
    connect,
    use_cores,
)
from bfpp.executor.processes.launcher.sigterm import STOPPED, is_offered, signals_to
from bfpp.executor.processes.sealed_store import sealed
from bfpp.executor.processes.watch.lane_record import Record
from bfpp.executor.processes.watch.watch import Watch
from bfpp.executor.processes.watch.watchdog import Watchdog

PARENT = "BFPP_PARENT"  # the environment variable with its process id
SET_PARENT_DEATH_SIGNAL = 1  # of Linux's prctl
ASK_WHERE = signal.SIGUSR1  # writes to the log where all threads are
MESSAGES = "messages"
WORK = "work.pickle"
OUTCOME = "outcome.pickle"
RECORD = "lanes-{}"


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    end_if_orphaned()  # it may have ended while this process imported torch


def end_if_orphaned() -> None:
    """End this process if its parent has ended."""
    if os.getppid() != int(os.environ[PARENT]):
        os._exit(1)


def end_or_stop(context: ProcessContext, store: Store, signal_number: int) -> None:
    """The watchdog's check at every heartbeat and signal, from the parent or anyone else."""
    end_if_orphaned()
    if signal_number == signal.SIGTERM:
        if not is_offered(store):
            os._exit(STOPPED)
        context.stop.ask()


def main(directory: Path) -> None:
    """Run this process's part; the first one writes the outcome to the directory."""
    end_with_parent()
    entry, arguments, limits = pickle.loads((directory / WORK).read_bytes())  # noqa: S301  ours
    process, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    use_cores(processes)
    store = sealed(connect(FOREVER))

    def send(message: Message) -> None:
        if process == 0:
            store.queue_push(MESSAGES, json.dumps(message))

    watch = Watch(Record(directory / RECORD.format(process)))
    context = ProcessContext(process, processes, process, store, watch, limits, send)
    own_store = sealed(connect(FOREVER))
    look = partial(end_or_stop, context, own_store)
    watchdog = Watchdog(process, context.watch, own_store, limits, look)
    with signals_to(watchdog, [signal.SIGTERM]):
        outcome = take_part(entry, arguments, context, watchdog)
        if context.is_first:
            (directory / OUTCOME).write_bytes(pickle.dumps(outcome))
        sys.stdout.flush()
        sys.stderr.flush()
        # Everything is written: the interpreter's own shutdown could only be slow, or hang.
        os._exit(0)

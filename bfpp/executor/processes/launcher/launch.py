"""Start the processes of a run on this machine, or join those of torchrun.

The parent hosts the rendezvous store, so no port is chosen before it is bound, and
the store outlives every process. It listens on the loopback interface only, and its values
are sealed with a secret that the parent gives to its processes. The parent sees how
processes end, reads their heartbeats, and raises `RunFailed` once, naming the culprit; it
leaves no process behind.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from torch.distributed import Store, TCPStore

from bfpp.executor.events import Message, ended
from bfpp.executor.processes.environment import is_joined, prepare
from bfpp.executor.processes.launcher.children import Children
from bfpp.executor.processes.launcher.hosts import HERE, Hosts
from bfpp.executor.processes.launcher.member import MESSAGES, OUTCOME, RECORD, WORK
from bfpp.executor.processes.launcher.process import Arguments, Entry, Outcome
from bfpp.executor.processes.launcher.sigterm import Stop, Terminated, is_offered, sigterm_asks
from bfpp.executor.processes.launcher.torchrun import launch_joined
from bfpp.executor.processes.network import listening
from bfpp.executor.processes.sealed_store import SealedStore, new_secret, queued
from bfpp.executor.processes.watch.diagnosis import (
    Diagnosis,
    RunFailed,
    RunState,
    diagnose,
    diagnose_exit,
)
from bfpp.executor.processes.watch.heartbeats import Limits
from bfpp.executor.processes.watch.lane_record import last_heartbeat
from bfpp.executor.processes.watch.observer import Observer
from bfpp.executor.processes.watch.stacks import stacks
from bfpp.schedules import InvalidInput

PERIOD = 0.05  # seconds between two polls of messages and exits
TO_ANSWER = 1.0  # seconds for a hung process to write its stacks
LOG_LINES = 20


def launch(
    entry: Entry[Arguments, Outcome],
    arguments: Arguments,
    processes: int,
    limits: Limits | None = None,
    on_message: Callable[[Message], None] = lambda _: None,
    interface: str | None = None,
    hosts: Hosts = HERE,
) -> Outcome | None:
    """Run `entry(context, arguments)` in all processes and return the first one's outcome.

    Under torchrun, the other processes get None; a failure ends each process
    there, after one of them has said why. The messages that the first process
    sends (`place.send`) arrive at `on_message` (`bfpp.executor.events`), and at last,
    where the run did not end by itself, how it ended. They reach each other by a
    network `interface`, by default the one that leads to the first process. Processes that are
    started here may be on other `hosts` that share this machine's files.

    Raises `RunFailed` where a process failed, died or hung, `Terminated` where
    SIGTERM ended the run at once, `ValueError` where another process cannot import
    the entry, and `InvalidInput` where torchrun started another number of processes,
    or there is no such interface.
    """
    limits = (limits or Limits()).among(processes)
    prepare(interface)
    if not is_joined():
        return _launch_own(entry, arguments, processes, limits, on_message, interface, hosts)
    if int(os.environ["WORLD_SIZE"]) != processes:
        started = os.environ["WORLD_SIZE"]
        raise InvalidInput(f"the run needs {processes} processes, and torchrun started {started}")
    return launch_joined(entry, arguments, limits, on_message)


def _launch_own(
    entry: Entry[Arguments, Outcome],
    arguments: Arguments,
    processes: int,
    limits: Limits,
    on_message: Callable[[Message], None],
    interface: str | None,
    hosts: Hosts,
) -> Outcome:
    if entry.__module__ == "__main__":
        raise ValueError(f"{entry.__qualname__} must be in a module that can be imported")
    work = pickle.dumps((entry, arguments, limits))
    secret = new_secret()
    host = _hosted(hosts.address)
    store = SealedStore(host, secret)
    observer, stop = Observer(store, processes, limits), Stop()
    with _directory() as directory, sigterm_asks(stop):
        (directory / WORK).write_bytes(work)
        children = Children(directory, processes, host.port, secret, interface, hosts)
        with closing(children):
            try:
                diagnosis = _supervise(children, store, observer, on_message, directory, stop)
            except (KeyboardInterrupt, Terminated):
                _hear(store, on_message)
                on_message(ended("interrupted"))
                raise
            if diagnosis is not None:
                failure = _failure(children, diagnosis, directory)
                _hear(store, on_message)
                on_message(ended("failed", str(failure)))
                raise failure
        outcome: Outcome = pickle.loads((directory / OUTCOME).read_bytes())  # noqa: S301  ours
    return outcome


def _hosted(address: str) -> TCPStore:
    with listening(address, 0) as place:
        port = place.getsockname()[1]
        return TCPStore(
            address, port, is_master=True, wait_for_workers=False, master_listen_fd=place.detach()
        )


@contextmanager
def _directory() -> Iterator[Path]:
    """The directory of the work, the outcome and the logs; kept if a process failed."""
    directory = Path(tempfile.mkdtemp(prefix="bfpp-"))
    keep = False
    try:
        yield directory
    except RunFailed as error:
        keep = bool(error.details)
        raise
    finally:
        if not keep:
            shutil.rmtree(directory)


def _supervise(
    children: Children,
    store: Store,
    observer: Observer,
    on_message: Callable[[Message], None],
    directory: Path,
    stop: Stop,
) -> Diagnosis | None:
    """Wait until all processes are done, or one of them or SIGTERM ended the run."""
    gone: dict[int, int] = {}
    next_look = 0.0
    was_asked = False
    while True:
        before, gone = gone, children.ended()
        _hear(store, on_message)
        if stop.is_urgent or (stop.asked and not is_offered(store)):
            raise Terminated
        if stop.asked and not was_asked:
            was_asked = True
            children.ask_to_stop()
        if time.monotonic() > next_look or gone != before:
            state = _with_records(observer.look(), directory)
            next_look = time.monotonic() + state.limits.heartbeat
            diagnosis = _diagnose_ends(state, gone, directory) or diagnose(state)
            if diagnosis or len(gone) == len(state.heartbeats):
                return diagnosis
        time.sleep(PERIOD)


def _hear(store: Store, on_message: Callable[[Message], None]) -> None:
    """The messages sent so far; not those sent meanwhile, which may never end."""
    for each in queued(store, MESSAGES):
        on_message(json.loads(each))


def _with_records(state: RunState, directory: Path) -> RunState:
    """The state with the last recorded activities of silent processes, newer than heartbeats."""
    heartbeats = list(state.heartbeats)
    for process, heartbeat in state.known():
        if state.silent[process] > state.patience:
            heartbeats[process] = last_heartbeat(directory / RECORD.format(process), heartbeat)
    return replace(state, heartbeats=tuple(heartbeats))


def _diagnose_ends(state: RunState, ended: dict[int, int], directory: Path) -> Diagnosis | None:
    """The diagnosis of the processes that ended before they were done.

    A victim of another's end may abort, so what aborted is named last.
    """
    early = [
        (status == -signal.SIGABRT, process)
        for process, status in ended.items()
        if status or not ((heartbeat := state.heartbeats[process]) and heartbeat.done)
    ]
    if not early:
        return None
    _, process = min(early)
    heartbeats = list(state.heartbeats)
    if heartbeat := heartbeats[process]:
        heartbeats[process] = last_heartbeat(directory / RECORD.format(process), heartbeat)
    return diagnose_exit(replace(state, heartbeats=tuple(heartbeats)), process, ended[process])


def _failure(children: Children, diagnosis: Diagnosis, directory: Path) -> RunFailed:
    if diagnosis.expected:
        return RunFailed(diagnosis.process, diagnosis.message, "")
    stacks = _where(children, diagnosis) if diagnosis.alive else ""
    log = "\n".join(children.log(diagnosis.process).splitlines()[-LOG_LINES:])
    logs = f"The logs of all processes are in {directory}"
    details = filter(None, [diagnosis.traceback or stacks or log, logs])
    return RunFailed(diagnosis.process, diagnosis.message, "\n".join(details))


def _where(children: Children, diagnosis: Diagnosis) -> str:
    """The stacks of the threads to blame, if the process can still write them."""
    children.ask_where(diagnosis.process)
    where, before = "", ""
    for _ in range(round(TO_ANSWER / PERIOD)):
        time.sleep(PERIOD)
        before, where = where, stacks(children.log(diagnosis.process), diagnosis.threads)
        if where and where == before:  # all is written
            break
    return where

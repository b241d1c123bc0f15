"""A run in processes that torchrun started.

No parent process of ours sees how they end, so they diagnose failures themselves:
the first and the last (two of them, and on different hosts if there are several,
since one may be the one that hangs), any that failed or was asked to end, and all
of them if neither the first nor the last has started in time.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import NoReturn

from torch.distributed import DistError, PrefixStore, Store, TCPStore

from bfpp.executor.events import Message, ended
from bfpp.executor.processes.diagnosis import Diagnosis, RunFailed, diagnose
from bfpp.executor.processes.guard import LOST, Guard
from bfpp.executor.processes.heartbeats import Limits
from bfpp.executor.processes.observer import Observer, heartbeat_key, publish, published
from bfpp.executor.processes.place import Place, connect
from bfpp.executor.processes.process import Arguments, Entry, Outcome, take_part
from bfpp.executor.processes.stopping import STOPPED, is_offered, signals_to
from bfpp.executor.processes.watch import Watch

GRACE_TO_SAVE = 5.0  # seconds of silence that are too many where a run stops in order
CULPRIT_FIRST = 0.5  # seconds: torchrun names the process that it sees end first
BETWEEN_CALLS = 0.2
STORE_LOST = "the connection to the run's store is lost: the host of process 0, or torchrun, ended"


class Diagnoser:
    """A process that takes part in the diagnosis."""

    def __init__(self, place: Place, store: Store) -> None:
        self._place = place
        self._store = store
        self._observer = Observer(store, place.processes, place.limits)
        self._observes = place.process in (0, place.processes - 1)
        self._ends_alone = time.monotonic() + place.limits.start
        self._stops = False
        self._looks_left = round(2 * place.limits.grace / place.limits.heartbeat)
        store.set(_address_key(place.process), f"{_host()} {os.getpid()}")

    def look(self, signal_number: int) -> None:
        """After each heartbeat: end the process if there is a diagnosis or it was asked to end."""
        if signal_number == LOST:
            self._end(Diagnosis(self._place.process, STORE_LOST), say=self._place.local == 0)
        if signal_number == signal.SIGINT:
            self._leave(128 + signal.SIGINT)
        if signal_number == signal.SIGTERM:
            self._place.stop.ask()
        self._stops = self._place.stop.asked and is_offered(self._store)
        diagnosis = published(self._store) or self._diagnose()
        if diagnosis:
            self._end(diagnosis)
        if self._place.stop.is_urgent:
            self._leave(STOPPED)
        if self._place.stop.asked and not self._stops:
            self._looks_left -= 1
            if self._looks_left < 0:
                self._leave(STOPPED)

    def wait_for_others(self) -> None:
        """Wait until all are done: the first process may host the store that the others need."""
        while not all(each and each.done for each in self._observer.look().heartbeats):
            time.sleep(self._place.limits.heartbeat / 5)

    def _diagnose(self) -> Diagnosis | None:
        asked = self._place.stop.asked
        if not (self._observes or asked or self._place.watch.has_failed):
            self._observes = self._is_alone()
            return None
        # torchrun asks the others to end when one has died: a short silence will do. But it
        # asks all to end, too, when it is itself asked to: who saves may be silent for longer.
        state = self._observer.look(ending=asked)
        if self._stops:
            grace = max(state.limits.grace, GRACE_TO_SAVE)
            state = replace(state, limits=replace(state.limits, grace=grace))
        diagnosis = diagnose(state)
        if diagnosis and publish(self._store, diagnosis):
            self._end(diagnosis, say=True)
        return diagnosis

    def _is_alone(self) -> bool:
        """Whether the first and the last process are both late to start."""
        last = self._place.processes - 1
        is_late = time.monotonic() > self._ends_alone
        return is_late and not any(self._store.check([heartbeat_key(each)]) for each in (0, last))

    def _end(self, diagnosis: Diagnosis, say: bool = False) -> None:
        if say:
            print(f"bfpp: {diagnosis}", file=sys.stderr, flush=True)  # noqa: T201  the one message
        if diagnosis.process != self._place.process:
            if diagnosis.alive:
                self._kill(diagnosis.process)
            time.sleep(CULPRIT_FIRST)
        self._leave(1, "failed", diagnosis.message)

    def _leave(self, code: int, how: str = "interrupted", reason: str = "") -> NoReturn:
        with suppress(Exception):  # whoever listens must not keep the process
            self._place.send(ended(how, reason))
        os._exit(code)

    def _kill(self, process: int) -> None:
        """End a process of this host that may not end by itself: torchrun would wait for it."""
        if self._store.check([_address_key(process)]):
            host, pid = self._store.get(_address_key(process)).decode().split()
            if host == _host():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def launch_joined(
    entry: Entry[Arguments, Outcome],
    arguments: Arguments,
    limits: Limits,
    on_message: Callable[[Message], None],
) -> Outcome | None:
    """One process's part of the run; the outcome in the first process, None in the others."""
    process, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = _store(process, timedelta(seconds=limits.start))
    store.set_timeout(limits.communication)
    local = int(os.environ.get("LOCAL_RANK", "0"))
    send = on_message if process == 0 else _nothing
    place = Place(process, processes, local, store, Watch(), limits, send)
    own_store = _of_this_attempt(connect(timedelta(seconds=limits.hang)))
    diagnoser = Diagnoser(place, own_store)
    guard = Guard(process, place.watch, own_store, limits, diagnoser.look)
    with signals_to(guard, [signal.SIGTERM, signal.SIGINT]):
        outcome = take_part(entry, arguments, place, guard)
        if place.is_first:
            diagnoser.wait_for_others()
    return outcome if place.is_first else None


def _store(process: int, timeout: timedelta) -> Store:
    """The store by which processes find each other: torchrun's, or the first process hosts one.

    It does not wait for the others: the watch reports who has not started.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_host = process == 0 and not _has_store()
    try:
        if not is_host:
            _wait_for(host, port, timeout.total_seconds())
        store = TCPStore(
            host, port, None, is_host, timeout, wait_for_workers=False, multi_tenant=True
        )
    except (DistError, OSError, UnicodeError) as error:
        reason = str(error).partition("\n")[0]
        message = f"process {process} cannot {'host' if is_host else 'reach'} the run's store"
        raise RunFailed(process, f"{message} at {host}, port {port}: {reason}", "") from None
    return _of_this_attempt(store)


def _wait_for(host: str, port: int, seconds: float) -> None:
    """Wait until the port answers: torch would log every failed attempt in many lines."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=max(1.0, seconds / 10)).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(BETWEEN_CALLS)
        else:
            return


def _has_store() -> bool:
    """Whether torchrun hosts the store; other launchers that set its variables do not."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _of_this_attempt(store: Store) -> Store:
    """Keys of this attempt only: torchrun may restart a run with the same store."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"attempt {attempt}", store)


def _address_key(process: int) -> str:
    return f"address/{process}"


def _host() -> str:
    """The same for two processes only if one torchrun started both, on one host."""
    return f"{platform.node()}/{os.getppid()}"


def _nothing(_: Message) -> None:
    """Where the other processes send their messages."""

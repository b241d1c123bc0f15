"""A run in processes that torchrun started.

No parent process of ours sees how they end, so they diagnose failures themselves:
the first and the last (two of them, and on different hosts if there are several,
since one may be the one that hangs), any that failed or was asked to end, and all
of them if neither the first nor the last has started in time. Of many processes it is
the first and the last alone, until these do not start: all would read all heartbeats.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from errno import EADDRINUSE
from typing import NoReturn

from torch.distributed import DistError, PrefixStore, Store, TCPStore

from bfpp.executor.events import Message, ended
from bfpp.executor.processes.environment import has_store, store_host
from bfpp.executor.processes.launcher.process import Arguments, Entry, Outcome, take_part
from bfpp.executor.processes.launcher.process_context import ProcessContext, connect
from bfpp.executor.processes.launcher.siblings import siblings
from bfpp.executor.processes.launcher.sigterm import STOPPED, is_offered, signals_to
from bfpp.executor.processes.network import listening
from bfpp.executor.processes.sealed_store import peek, sealed
from bfpp.executor.processes.watch.diagnosis import Diagnosis, RunFailed, diagnose
from bfpp.executor.processes.watch.heartbeats import Limits
from bfpp.executor.processes.watch.observer import Observer, heartbeat_key, publish, published
from bfpp.executor.processes.watch.watch import Watch
from bfpp.executor.processes.watch.watchdog import LOST, Watchdog

GRACE_TO_SAVE = 5.0  # seconds of silence that are too many where a run stops in order
CULPRIT_FIRST = 0.5  # seconds: torchrun names the process that it sees end first
BETWEEN_CALLS = 0.2
MANY = 64
"""Processes from which on those that fail or are asked to end leave it to others to say why."""
STORE_LOST = "the connection to the run's store is lost: the host of process 0, or torchrun, ended"


class Diagnoser:
    """A process that takes part in the diagnosis."""

    def __init__(self, context: ProcessContext, store: Store) -> None:
        self._context = context
        self._store = store
        self._observer = Observer(store, context.processes, context.limits)
        self._observes = context.process in (0, context.processes - 1)
        self._ends_alone = time.monotonic() + context.limits.start
        self._stops = False
        # For as long, one that was asked to end waits for the diagnosis that says why.
        self._looks_left = round(2 * context.limits.grace / context.limits.heartbeat)

    def look(self, signal_number: int) -> None:
        """After each heartbeat: end the process if there is a diagnosis or it was asked to end."""
        if signal_number == LOST:
            self._end(Diagnosis(self._context.process, STORE_LOST), say=self._context.local == 0)
        if signal_number == signal.SIGINT:
            self._leave(128 + signal.SIGINT)
        if signal_number == signal.SIGTERM:
            self._context.stop.ask()
        self._stops = self._context.stop.asked and is_offered(self._store)
        diagnosis = published(self._store) or self._diagnose()
        if diagnosis:
            self._end(diagnosis)
        if self._context.stop.is_urgent:
            self._leave(STOPPED)
        if self._context.stop.asked and not self._stops:
            self._looks_left -= 1
            if self._looks_left < 0:
                self._leave(STOPPED)

    def wait_for_others(self) -> None:
        """Wait until all are done: the first process may host the store that the others need."""
        while not all(each and each.done for each in self._observer.look().heartbeats):
            time.sleep(self._context.limits.heartbeat / 5)

    def _diagnose(self) -> Diagnosis | None:
        asked = self._context.stop.asked
        is_involved = asked or self._context.watch.has_failed
        if not self._observes and not (is_involved and self._context.processes < MANY):
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
        """True if the first and the last process are both late to start."""
        last = self._context.processes - 1
        is_late = time.monotonic() > self._ends_alone
        return is_late and not any(peek(self._store, heartbeat_key(each)) for each in (0, last))

    def _end(self, diagnosis: Diagnosis, say: bool = False) -> None:
        if say:
            print(f"bfpp: {diagnosis}", file=sys.stderr, flush=True)  # noqa: T201  the one message
        if diagnosis.process != self._context.process:
            if diagnosis.alive:
                _kill(diagnosis.process)
            time.sleep(CULPRIT_FIRST)
        self._leave(1, "failed", diagnosis.message)

    def _leave(self, code: int, how: str = "interrupted", reason: str = "") -> NoReturn:
        with suppress(Exception):  # whoever listens must not keep the process
            self._context.send(ended(how, reason))
        os._exit(code)


def _kill(process: int) -> None:
    """End a process of this host that may not end by itself: torchrun would wait for it.

    Which one that is, the system knows, of those that our own launcher started.
    """
    for pid in siblings(process):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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
    context = ProcessContext(process, processes, local, store, Watch(), limits, send)
    own_store = _of_this_attempt(connect(timedelta(seconds=limits.hang)))
    diagnoser = Diagnoser(context, own_store)
    watchdog = Watchdog(process, context.watch, own_store, limits, diagnoser.look)
    with signals_to(watchdog, [signal.SIGTERM, signal.SIGINT]):
        outcome = take_part(entry, arguments, context, watchdog)
        if context.is_first:
            diagnoser.wait_for_others()
    return outcome if context.is_first else None


def _store(process: int, timeout: timedelta) -> Store:
    """The store by which processes find each other: torchrun's, or the first process hosts one.

    It does not wait for the others: the watch reports who has not started.
    """
    host, port = store_host(os.environ), int(os.environ["MASTER_PORT"])
    is_host = process == 0 and not has_store(os.environ)
    try:
        if not is_host:
            _wait_for(host, port, timeout.total_seconds())
        store = TCPStore(
            host,
            port,
            is_master=is_host,
            timeout=timeout,
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=_listening(host, port) if is_host else None,
        )
    except (DistError, OSError, UnicodeError) as error:
        reason = str(error).partition("\n")[0]
        message = f"process {process} cannot {'host' if is_host else 'reach'} the run's store"
        raise RunFailed(process, f"{message} at {host}, port {port}: {reason}", "") from None
    return _of_this_attempt(store)


def _listening(host: str, port: int) -> int | None:
    """The store's listening socket; None where the port is taken.

    That may be by another run of this process, whose store is then shared; if not, torch fails.
    """
    try:
        return listening(host, port).detach()
    except OSError as error:
        if error.errno != EADDRINUSE:
            raise
        return None


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


def _of_this_attempt(store: Store) -> Store:
    """Keys of this attempt only: torchrun may restart a run with the same store."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return sealed(PrefixStore(f"attempt {attempt}", store))


def _nothing(_: Message) -> None:
    """The address that the other processes send their messages to."""

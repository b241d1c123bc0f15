"""Read the heartbeats of all processes and publish one diagnosis.

Silence is summed from look to look, and a long gap between looks counts as a short
one: an observer that was itself stopped does not declare the others dead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from secrets import token_hex

from torch.distributed import Store

from bfpp.executor.processes.sealed_store import Forged, peek
from bfpp.executor.processes.watch.diagnosis import Diagnosis, RunState, diagnosis_from_json
from bfpp.executor.processes.watch.heartbeats import Heartbeat, Limits, heartbeat_from_json

DIAGNOSIS = "diagnosis"


def heartbeat_key(process: int) -> str:
    """The store key of a process's heartbeats."""
    return f"heartbeat/{process}"


class Observer:
    """A reader of the heartbeats; call `look` every `limits.heartbeat` seconds."""

    def __init__(
        self,
        store: Store,
        processes: int,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._limits = limits
        self._heartbeats: list[Heartbeat | None] = [None] * processes
        self._silent = [0.0] * processes
        self._clock = clock
        self._looked = clock()

    def look(self, ending: bool = False) -> RunState:
        """The current state of all processes."""
        now = self._clock()
        elapsed = min(now - self._looked, 2 * self._limits.heartbeat)
        self._looked = now
        for process, before in enumerate(self._heartbeats):
            heartbeat = self._read(heartbeat_key(process), is_there=before is not None) or before
            heard = heartbeat is not None and (before is None or heartbeat.count != before.count)
            self._silent[process] = 0.0 if heard else self._silent[process] + elapsed
            self._heartbeats[process] = heartbeat
        return RunState(tuple(self._heartbeats), tuple(self._silent), self._limits, ending)

    def _read(self, key: str, is_there: bool) -> Heartbeat | None:
        """The last heartbeat of a process; None for one that it cannot have sent."""
        text: bytes | None = None
        with suppress(Forged):
            text = self._store.get(key) if is_there else peek(self._store, key)
        with suppress(ValueError):
            return heartbeat_from_json(text, len(self._heartbeats)) if text else None
        return None


def publish(store: Store, diagnosis: Diagnosis) -> bool:
    """Publish the diagnosis; False if another process was first.

    A mark of its own decides: two processes may reach the same diagnosis at once.
    """
    own = f"{token_hex(8)} {diagnosis.to_json()}"
    return store.compare_set(DIAGNOSIS, "", own) == own.encode()


def published(store: Store) -> Diagnosis | None:
    """The diagnosis, if there is one."""
    text = peek(store, DIAGNOSIS)
    with suppress(ValueError):
        return diagnosis_from_json(text.partition(b" ")[2]) if text else None
    return None

"""Reads the heartbeats of all processes and settles, once, who is to blame.

Silence is summed from look to look, and a long gap between looks counts as a short
one: an observer that was itself stopped does not declare the others dead.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torch.distributed import Store

from bfpp.executor.processes.diagnosis import Diagnosis, RunState, diagnosis_from_json
from bfpp.executor.processes.heartbeats import Heartbeat, Limits, heartbeat_from_json

DIAGNOSIS = "diagnosis"
DIAGNOSES = "diagnoses"


def heartbeat_key(process: int) -> str:
    """The store key of a process's heartbeats."""
    return f"heartbeat/{process}"


class Observer:
    """One reader of the heartbeats; `look` is to be called every `limits.heartbeat` seconds."""

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
            heartbeat = self._read(heartbeat_key(process), first=before is None)
            heard = heartbeat is not None and (before is None or heartbeat.count != before.count)
            self._silent[process] = 0.0 if heard else self._silent[process] + elapsed
            self._heartbeats[process] = heartbeat
        return RunState(tuple(self._heartbeats), tuple(self._silent), self._limits, ending)

    def _read(self, key: str, first: bool) -> Heartbeat | None:
        # Reading a key that is not there would wait for it.
        if first and not self._store.check([key]):
            return None
        return heartbeat_from_json(self._store.get(key))


def publish(store: Store, diagnosis: Diagnosis) -> bool:
    """Publish the diagnosis; False if another process was first.

    A counter decides: two processes may reach the same diagnosis at once.
    """
    is_first = store.add(DIAGNOSES, 1) == 1
    if is_first:
        store.set(DIAGNOSIS, diagnosis.to_json())
    return is_first


def published(store: Store) -> Diagnosis | None:
    """The diagnosis, if there is one."""
    return diagnosis_from_json(store.get(DIAGNOSIS)) if store.check([DIAGNOSIS]) else None

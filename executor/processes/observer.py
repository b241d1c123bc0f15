"""Reads the beats of all processes and settles, once, who is to blame.

Silence is summed from look to look, and a long gap between looks counts as a short
one: an observer that was itself stopped does not declare the others dead.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torch.distributed import Store

from bfpp.executor.processes.beats import Beat, Limits, beat_from_json
from bfpp.executor.processes.verdict import Scene, Verdict, verdict_from_json

VERDICT = "verdict"
VERDICTS = "verdicts"


def beat_key(process: int) -> str:
    """The store key of a process's beats."""
    return f"beat/{process}"


class Observer:
    """One reader of the beats; `look` is to be called every `limits.beat` seconds."""

    def __init__(
        self,
        store: Store,
        processes: int,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._limits = limits
        self._beats: list[Beat | None] = [None] * processes
        self._silent = [0.0] * processes
        self._clock = clock
        self._looked = clock()

    def look(self, ending: bool = False) -> Scene:
        """The current state of all processes."""
        now = self._clock()
        elapsed = min(now - self._looked, 2 * self._limits.beat)
        self._looked = now
        for process, before in enumerate(self._beats):
            beat = self._read(beat_key(process), first=before is None)
            heard = beat is not None and (before is None or beat.count != before.count)
            self._silent[process] = 0.0 if heard else self._silent[process] + elapsed
            self._beats[process] = beat
        return Scene(tuple(self._beats), tuple(self._silent), self._limits, ending)

    def _read(self, key: str, first: bool) -> Beat | None:
        # Reading a key that is not there would wait for it.
        if first and not self._store.check([key]):
            return None
        return beat_from_json(self._store.get(key))


def publish(store: Store, verdict: Verdict) -> bool:
    """Publish the verdict; False if another process was first.

    A counter decides: two processes may reach the same verdict at once.
    """
    is_first = store.add(VERDICTS, 1) == 1
    if is_first:
        store.set(VERDICT, verdict.to_json())
    return is_first


def published(store: Store) -> Verdict | None:
    """The verdict, if there is one."""
    return verdict_from_json(store.get(VERDICT)) if store.check([VERDICT]) else None

"""Record of each lane's activity that outlives the process, for the launcher to read.

A heartbeat is up to half a second old, in which hundreds of tasks may have come and
gone. So each lane writes what it enters and leaves to its own entry in a
memory-mapped file: no system call, and intact however the process ends.
"""

from __future__ import annotations

import mmap
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bfpp.executor.processes.watch.heartbeats import Activity, Heartbeat, LaneState

MOST_LANES = 1024
NO_STEP = -1
OTHERS = (-1,)  # whom it waits for: the heartbeats say that


class Entry(NamedTuple):
    """A lane's current or last activity: whether it still runs, in which step, and since when.

    `waits` says whether it waits for other processes; `thread` is the host thread that runs it.
    """

    busy: bool
    step: int
    since: float
    waits: bool
    thread: int
    words: bytes


FORM = struct.Struct("<?qd?q102p")
"""An entry in the file: 128 bytes, in which words end after 101."""


class Record:
    """The writable entries of a process's lanes."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(FORM.size * MOST_LANES))  # a disk that is full shows here
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._places: dict[str, int] = {}

    def write(self, lane: str, entry: Entry) -> None:
        """A lane begins or ends an activity; lanes beyond the maximum are not recorded."""
        place = self._places.get(lane)
        if place is None:
            place = self._places[lane] = FORM.size * len(self._places)
        if place < len(self._memory):
            FORM.pack_into(self._memory, place, *entry)


def last_heartbeat(path: Path, heartbeat: Heartbeat) -> Heartbeat:
    """The last heartbeat of a silent process, updated with its lanes' last tasks."""
    if not path.exists():
        return heartbeat
    now = time.monotonic()
    entries = [Entry(*fields) for fields in FORM.iter_unpack(path.read_bytes())]
    entries = [entry for entry in entries if entry.words]
    if not entries:
        return heartbeat
    step = max(entries, key=lambda entry: entry.since).step
    lanes = tuple(
        LaneState(
            "",
            Activity(entry.words.decode(errors="ignore"), OTHERS * entry.waits),
            entry.busy,
            now - entry.since,
            entry.thread,
        )
        for entry in entries
    )
    return replace(heartbeat, step=None if step == NO_STEP else step, lanes=lanes)

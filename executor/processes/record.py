"""What each lane is in, kept where it outlives the process: its launcher reads it at its end.

A beat is up to half a second old, in which hundreds of tasks may have come and
gone. So each lane writes what it enters and leaves to a place of its own in a
file that is mapped into memory: no call of the system, and whole whenever the
process ends, by whatever means.
"""

from __future__ import annotations

import mmap
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bfpp.executor.processes.beats import Activity, Beat, LaneState

MOST_LANES = 1024
NO_STEP = -1
OTHERS = (-1,)  # for whom it waits, which is in the beats


class Entry(NamedTuple):
    """What a lane is in, or its last activity: whether still, in which step, and since when.

    `waits` is whether others are needed for it, `thread` the one of the host's that is in it.
    """

    busy: bool
    step: int
    since: float
    waits: bool
    thread: int
    words: bytes


FORM = struct.Struct("<?qd?q102p")
"""An entry in the file."""


class Record:
    """The entries of a process's lanes, to be written."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(FORM.size * MOST_LANES))  # a disk that is full shows here
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._places: dict[str, int] = {}

    def write(self, lane: str, entry: Entry) -> None:
        """A lane enters something, or has left it; beyond the most lanes, nothing is kept."""
        place = self._places.get(lane)
        if place is None:
            place = self._places[lane] = FORM.size * len(self._places)
        if place < len(self._memory):
            FORM.pack_into(self._memory, place, *entry)


def last_beat(path: Path, beat: Beat) -> Beat:
    """The last beat of a process that beats no more, with what its lanes were in at last."""
    if not path.exists():
        return beat
    now = time.monotonic()
    entries = [Entry(*fields) for fields in FORM.iter_unpack(path.read_bytes())]
    entries = [entry for entry in entries if entry.words]
    if not entries:
        return beat
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
    return replace(beat, step=None if step == NO_STEP else step, lanes=lanes)

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

from bfpp.executor.processes.beats import Activity, Beat, LaneState

ENTRY = struct.Struct("<?qd?102p")  # busy, step or -1, since when, whether it waits, words
MOST_LANES = 1024
NO_STEP = -1
OTHERS = (-1,)  # for whom it waits, which is in the beats


class Record:
    """The entries of a process's lanes, to be written."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(ENTRY.size * MOST_LANES))  # a disk that is full shows here
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._places: dict[str, int] = {}

    def write(
        self, lane: str, step: int | None, since: float, busy: bool, words: bytes, waits: bool
    ) -> None:
        """A lane enters something, or has left it; beyond the most lanes, nothing is kept."""
        place = self._places.get(lane)
        if place is None:
            place = self._places[lane] = ENTRY.size * len(self._places)
        if place < len(self._memory):
            number = NO_STEP if step is None else step
            ENTRY.pack_into(self._memory, place, busy, number, since, waits, words)


def last_beat(path: Path, beat: Beat) -> Beat:
    """The last beat of a process that has ended, with what its lanes were in at its end."""
    if not path.exists():
        return beat
    now = time.monotonic()
    entries = [entry for entry in ENTRY.iter_unpack(path.read_bytes()) if entry[-1]]
    lanes = tuple(
        LaneState("", Activity(words.decode(errors="ignore"), OTHERS * waits), busy, now - since)
        for busy, _, since, waits, words in entries
    )
    latest = max(entries, key=lambda entry: entry[2], default=None)
    if latest is None:
        return beat
    step = None if latest[1] == NO_STEP else int(latest[1])
    return replace(beat, step=step, lanes=lanes)

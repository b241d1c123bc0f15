"""Which waits of a step are needed: those that no other wait implies.

Lanes are in order, and what they meet for is over for all of them at once. So a clock says it
all: of each lane, up to which meeting all is over. A lane that waits for a meeting knows what
was known there, and need not wait for any of that again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bfpp.schedules.columns import NONE, Integers


class Clocks:
    """What each of some lanes knows to be over, as meetings are put on them, by their numbers."""

    def __init__(self, lanes: int) -> None:
        self.known: Integers = np.full((lanes, lanes), NONE, dtype=np.int32)
        self.over: list[Integers] = []
        self.lane_of: list[int] = []

    def meet(self, lanes: Sequence[int], waits: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """The next meeting: of these lanes, each of which waits for some; the waits it needs."""
        needed = [self._wait(*each) for each in zip(lanes, waits, strict=True)]
        places = [*lanes]
        clock = self.known[places].max(axis=0)
        clock[places] = len(self.over)
        self.known[places] = clock
        self.over.append(clock)
        self.lane_of.append(lanes[-1])
        return needed

    def _wait(self, lane: int, waits: Sequence[int]) -> tuple[int, ...]:
        """The latest ones first, since they imply the others more often."""
        known, needed = self.known[lane], []
        for meeting in sorted({*waits}, reverse=True):
            if known[self.lane_of[meeting]] < meeting:
                np.maximum(known, self.over[meeting], out=known)
                needed.append(meeting)
        return tuple(needed)

"""Remove redundant waits of a step: those that others imply.

Theory of operation. Lanes are in order, and a joint task is over for all of its lanes at once. So a
vector clock says it all: for each lane, up to which joint task all is over. A lane that waits for
one knows all that was known there, and need not wait for any of that again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bfpp.schedules.columns import NONE, Integers


class Clocks:
    """Vector clocks of lanes: the joint tasks that each lane knows to be over, by number."""

    def __init__(self, lanes: int) -> None:
        self.known: Integers = np.full((lanes, lanes), NONE, dtype=np.int32)
        self.over: list[Integers] = []
        self.lane_of: list[int] = []

    def add(self, lanes: Sequence[int], waits: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """Add a joint task of these lanes, each of which waits for others; the waits it needs."""
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
        for joint in sorted({*waits}, reverse=True):
            if known[self.lane_of[joint]] < joint:
                np.maximum(known, self.over[joint], out=known)
                needed.append(joint)
        return tuple(needed)

"""Unions of intervals, as two sorted columns that do not overlap."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import Seconds


class Intervals(NamedTuple):
    """Disjoint intervals in order; those that touch are one."""

    start: Seconds
    end: Seconds

    @property
    def length(self) -> float:
        """The sum of their lengths."""
        return float((self.end - self.start).sum())

    def within(self, start: Seconds, end: Seconds) -> Seconds:
        """The length of these intervals within each of others, given by their ends."""
        return self._before(end) - self._before(start)

    def _before(self, times: Seconds) -> Seconds:
        """The length of these intervals before each of some times."""
        place = np.searchsorted(self.start, times, side="right")
        lengths = np.concatenate([[0.0], np.cumsum(self.end - self.start)])
        last = np.concatenate([[-np.inf], self.end])[place]
        return np.asarray(lengths[place] - np.maximum(last - times, 0.0))


def union(start: Seconds, end: Seconds) -> Intervals:
    """The union of intervals, given in any order."""
    order = np.argsort(start, kind="stable")
    start, last = start[order], np.maximum.accumulate(end[order])
    if not len(start):
        return Intervals(start, last)
    begins = np.concatenate([[True], start[1:] > last[:-1]])
    return Intervals(start[begins], last[np.append(np.flatnonzero(begins)[1:] - 1, -1)])

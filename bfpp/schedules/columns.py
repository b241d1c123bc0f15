"""Array types and the few array idioms that columns of tasks share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Seconds = npt.NDArray[np.float64]

NONE = -1
"""The entry of an integer column for a task without such a thing."""


class Groups(NamedTuple):
    """Members of consecutive groups in one array (compressed sparse rows)."""

    start: Offsets
    member: Integers

    def of(self, group: int) -> Integers:
        """The members of one group, as a view."""
        return self.member[self.start[group] : self.start[group + 1]]


SHORT = 2**15
"""Groups whose numbers fit 16 bits, which numpy sorts by radix, several times faster."""


def among(column: npt.NDArray[np.integer], codes: Iterable[int]) -> Flags:
    """Mask of the entries among a few codes: `np.isin`, faster for a few."""
    mask = np.zeros(len(column), dtype=bool)
    for code in codes:
        mask |= column == int(code)
    return mask


def group_by(group: npt.NDArray[np.integer], member: Integers, groups: int) -> Groups:
    """Collect `member` by `group`, keeping the given order within each group."""
    key = group.astype(np.int16) if groups <= SHORT else group
    order = np.argsort(key, kind="stable")
    start = np.zeros(groups + 1, dtype=np.int64)
    np.cumsum(np.bincount(group, minlength=groups), out=start[1:])
    return Groups(start, member[order])


def group_both_ends(sender: Integers, receiver: Integers, groups: int) -> Groups:
    """Tasks in order, each in its sender's group and, if it has one, in its receiver's."""
    has_receiver = receiver != NONE
    ends = has_receiver + np.int8(1)
    task = np.repeat(np.arange(len(sender), dtype=np.int32), ends)
    group = np.repeat(sender, ends)
    group[1:][task[1:] == task[:-1]] = receiver[has_receiver]
    return group_by(group, task, groups)


def segment_starts(*columns: npt.NDArray[Any]) -> Flags:
    """Mask of the first entry, and of those that differ in some column from the one before."""
    starts = np.ones(len(columns[0]), dtype=bool)
    starts[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return starts


def place_in_segment(begins: Flags) -> Integers:
    """The place of each entry in its segment, from 0 on; `begins` marks the first of each."""
    place: Integers = np.arange(len(begins)) - np.flatnonzero(begins)[np.cumsum(begins) - 1]
    return place

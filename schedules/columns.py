"""Array types and the few array idioms that columns of tasks share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Seconds = npt.NDArray[np.float64]

NONE = -1
"""What an integer column holds where a task has no such thing."""


class Groups(NamedTuple):
    """Members of consecutive groups in one array (compressed sparse rows)."""

    start: Offsets
    member: Integers

    def of(self, group: int) -> Integers:
        """The members of one group, as a view."""
        return self.member[self.start[group] : self.start[group + 1]]


def group_by(group: npt.NDArray[np.integer], member: Integers, groups: int) -> Groups:
    """Collect `member` by `group`, keeping the given order within each group."""
    order = np.argsort(group, kind="stable")
    start = np.zeros(groups + 1, dtype=np.int64)
    np.cumsum(np.bincount(group, minlength=groups), out=start[1:])
    return Groups(start, member[order])

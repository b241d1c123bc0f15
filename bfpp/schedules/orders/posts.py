"""Posts: where the sends and receives of a rank stand among its steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import NONE, Flags, Integers
from bfpp.schedules.operations.operations import Operation


class Post(NamedTuple):
    """One end of a transfer as a file gives it, after a number of steps of its rank.

    `stage` is the one whose output or input gradient is carried.
    """

    is_send: bool
    operation: Operation
    stage: int
    microbatch: int
    steps: int


class Posts(NamedTuple):
    """Ends of transfers, rank by rank in the order in which they are posted.

    `after` is the compute step ahead of each, or `NONE`.
    """

    rank: Integers
    transfer: Integers
    is_send: Flags
    after: Integers

    def batches(self) -> dict[tuple[int, int], list[int]]:
        """The transfers of each group in the order of posts, by its rank and the step ahead."""
        found: dict[tuple[int, int], list[int]] = {}
        columns = (self.rank, self.after, self.transfer)
        for rank, after, task in zip(*(each.tolist() for each in columns), strict=True):
            found.setdefault((rank, after), []).append(task)
        return found

    def moved(self, first: Integers, last: Integers) -> Posts:
        """The same where tasks have other numbers: those at which each begins, and ends."""
        after = np.where(self.after == NONE, np.int32(NONE), last[self.after])
        return self._replace(transfer=first[self.transfer], after=after)


def posts_of(rows: npt.ArrayLike) -> Posts:
    """Posts of rows of a rank, a transfer, whether it is the send, and the step ahead."""
    table = np.array(rows, dtype=np.int32).reshape(-1, 4)
    return Posts(table[:, 0], table[:, 1], table[:, 2] == 1, table[:, 3])


NOWHERE = posts_of([])
"""The posts of a graph whose lanes give the order: transfers on channels, or none."""

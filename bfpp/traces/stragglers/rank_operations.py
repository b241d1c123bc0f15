"""Operations of one rank of a replica's step, and which pass each transfer belongs to."""

from __future__ import annotations

import numpy as np

from bfpp.schedules.columns import NONE, Integers
from bfpp.traces.stragglers.kinds import (
    BACKWARD,
    FORWARD,
    PARAMETERS,
    TRANSFERS,
    UPDATE,
    Transfer,
)
from bfpp.traces.stragglers.typical_step import Operations

CLOCK = 5e-5
"""Seconds by which clocks may differ where times decide which operations belong together."""


class Rank:
    """The operations of one rank, by kind."""

    def __init__(self, operations: Operations, rank: int) -> None:
        self.operations, self.rank = operations, rank
        self.ranks = int(operations.rank.max()) + 1
        self.chunks = max(int(operations.chunk.max()) + 1, 1)
        self.all = np.flatnonzero(operations.rank == rank)
        names = np.array(operations.kinds)[operations.kind[self.all]]
        self._by_kind = {name: self.all[names == name] for name in np.unique(names).tolist()}

    def of(self, *kinds: str) -> Integers:
        """Operations of some kinds, by start."""
        parts = [self._by_kind[kind] for kind in kinds if kind in self._by_kind]
        rows: Integers = np.concatenate([self.all[:0], *parts])
        each = self.operations
        return rows[np.lexsort((each.kind[rows], each.nth[rows], each.start[rows]))]

    def numbered(self, kind: str) -> Integers:
        """Operations of a kind by their number."""
        rows: Integers = self._by_kind.get(kind, self.all[:0])
        return rows[np.argsort(self.operations.nth[rows], kind="stable")]

    @property
    def others(self) -> Integers:
        """Operations of no known kind, by start, except for those inside a pass."""
        known = {FORWARD, BACKWARD, PARAMETERS, *TRANSFERS, *UPDATE}
        rows = self.of(*(kind for kind in self._by_kind if kind not in known))
        passes, each = self.of(FORWARD, BACKWARD), self.operations
        if not len(rows) or not len(passes):
            return rows
        inside = np.searchsorted(each.start[passes], each.start[rows] + CLOCK, "right") - 1
        until = np.where(inside >= 0, each.end[passes][inside], -np.inf)
        return rows[each.end[rows] > until + CLOCK]

    def stage(self, row: int) -> int:
        """The stage of the model that a pass belongs to, of chunks around the ranks in turn."""
        if self.operations.stage[row] != NONE:
            return int(self.operations.stage[row])
        return max(int(self.operations.chunk[row]), 0) * self.ranks + self.rank

    def is_inside(self, row: int, transfer: Transfer) -> bool:
        """True for a pass whose transfer has another end: not at an end of the model."""
        return 0 <= self.stage(row) + transfer.stages_on < self.chunks * self.ranks

    def transfers(self, kind: str) -> dict[int, int]:
        """Sends or receives, each with the pass that makes or needs its message.

        At an end of an interleaved model, some are recorded that did not run, and one may be
        missing.
        """
        each, transfer = self.operations, TRANSFERS[kind]
        rows, passes = self.of(kind), self.numbered(transfer.pass_)
        if not len(passes):
            return {}
        is_end = self.chunks > 1 and self.rank in (0, self.ranks - 1)
        if len(rows) != len(passes) or is_end:
            if transfer.sends:
                rows = rows[each.end[rows] >= each.end[passes].min() - CLOCK]
            else:
                rows = rows[each.start[rows] <= each.start[passes].max() + CLOCK]
        # The first pass of the model receives nothing.
        missing = int(not transfer.sends and len(rows) + 1 == len(passes))
        return dict(zip(rows.tolist(), passes[missing:].tolist(), strict=False))

"""Typical steps: the operations that a replica's step should have, and those that were measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bfpp.schedules import InvalidInput
from bfpp.schedules.columns import NONE, Flags, Integers, Offsets, Seconds
from bfpp.traces.stragglers.kinds import FORWARD, is_occasional
from bfpp.traces.timeline.operation_table import OperationTable

COMMON = 0.5
"""The share of replicas' steps that have an operation, from which on all should have it."""

LEAST = 0.75
"""The share of the most that a replica's steps have, of one that was recorded whole."""


MOST_CELLS = 2**26
"""Operations of all alike steps of replicas, measured or not."""


class Operations(NamedTuple):
    """Operations of a replica's step; times from its start."""

    kinds: tuple[str, ...]
    rank: Integers
    kind: Integers
    nth: Integers
    microbatch: Integers
    chunk: Integers
    stage: Integers
    start: Seconds
    end: Seconds

    @property
    def is_occasional(self) -> Flags:
        """Operations that did not run where they were not measured."""
        return np.array([is_occasional(kind) for kind in self.kinds])[self.kind]


@dataclass(frozen=True, eq=False)
class TypicalStep:
    """Operations that alike steps of replicas should have.

    `step` and `replica` are those of each; `row` has a row of the table for each of them and each
    operation, -1 where it was not measured.
    """

    operations: Operations
    step: Integers
    replica: Integers
    row: Integers


def typical_steps(table: OperationTable) -> tuple[list[TypicalStep], list[int]]:
    """Typical steps by their number of micro-batches; and steps that were recorded in part."""
    pair, which = _pairs(table)
    microbatches = np.zeros(len(pair), dtype=np.int64)
    forward = table.kind == _code(table, FORWARD)
    np.maximum.at(microbatches, which[forward], table.nth[forward] + 1)
    steps, partial = [], set[int]()
    for count in np.unique(microbatches):
        alike = microbatches == count
        typical = _typical(table, alike, which)
        step, replica = np.divmod(pair[alike], len(table.replicas))
        expected = ~typical.operations.is_occasional
        measured = (typical.row[:, expected] != NONE).sum(axis=1)
        most = np.zeros(len(table.replicas))
        np.maximum.at(most, replica, measured)
        partial |= set(step[measured < LEAST * most[replica]].tolist())
        steps.append((typical, step, replica))
    whole = []
    for typical, step, replica in steps:
        kept = ~np.isin(step, list(partial))
        if kept.any():
            row = typical.row[kept]
            whole.append(TypicalStep(typical.operations, step[kept], replica[kept], row))
    return whole, sorted(partial)


class _Typical(NamedTuple):
    operations: Operations
    row: Integers


def _pairs(table: OperationTable) -> tuple[Offsets, Offsets]:
    """The steps of replicas that there are, and which one each row belongs to."""
    code = table.step.astype(np.int64) * len(table.replicas) + table.replica
    pair, which = np.unique(code, return_inverse=True)
    return pair, which


def _code(table: OperationTable, kind: str) -> int:
    return table.kinds.index(kind) if kind in table.kinds else NONE


def _typical(table: OperationTable, alike: Flags, which: Offsets) -> _Typical:
    """The operations that most of these steps of replicas have, and where each has them."""
    rows = np.flatnonzero(alike[which])
    member = (np.cumsum(alike) - 1)[which[rows]]
    shape = len(table.ranks), len(table.kinds), int(table.nth[rows].max()) + 1
    key = np.ravel_multi_index((table.rank[rows], table.kind[rows], table.nth[rows]), shape)
    keys, place = np.unique(key, return_inverse=True)
    members = int(alike.sum())
    occasional = np.array([is_occasional(kind) for kind in table.kinds])
    common = np.bincount(place) >= COMMON * members
    common |= occasional[np.unravel_index(keys, shape)[1]]
    if members * int(common.sum()) > MOST_CELLS:
        raise InvalidInput("the steps of replicas have too little in common")
    row = np.full((members, int(common.sum())), NONE, dtype=np.int32)
    kept = common[place]
    row[member[kept], (np.cumsum(common) - 1)[place[kept]]] = rows[kept]
    keys = keys[common]
    rank, kind, nth = (each.astype(np.int32) for each in np.unravel_index(keys, shape))
    measured = row != NONE
    times = _Times(table, rows, member, row)
    best = int(measured[:, ~occasional[kind]].sum(axis=1).argmax())
    shown = row[measured.argmax(axis=0), np.arange(len(keys))]
    operations = Operations(
        table.kinds, rank, kind, nth, table.microbatch[shown], table.chunk[shown],
        table.stage[shown], times.of(best, table.start), times.of(best, table.end),
    )  # fmt: skip
    return _Typical(operations, row)


class _Times:
    """Times of alike steps of replicas, each from its first start."""

    def __init__(
        self, table: OperationTable, rows: Offsets, member: Offsets, row: Integers
    ) -> None:
        self.row, members = row, len(row)
        self.first, last = np.full(members, np.inf), np.full(members, -np.inf)
        np.minimum.at(self.first, member, table.start[rows])
        np.maximum.at(last, member, table.end[rows])
        # A step of a single moment: shares of nothing are nothing.
        self.length = np.maximum(last - self.first, np.finfo(float).tiny)

    def of(self, member: int, times: Seconds) -> Seconds:
        """The times of one of them; where it lacks some, as a median share of its length."""
        own: Seconds = times[self.row[member]] - self.first[member]
        missing = np.flatnonzero(self.row[member] == NONE)
        if len(missing):
            row = self.row[:, missing]
            share = (times[row] - self.first[:, np.newaxis]) / self.length[:, np.newaxis]
            shares = np.where(row != NONE, share, np.nan)
            own[missing] = np.nanmedian(shares, axis=0) * self.length[member]
        return own

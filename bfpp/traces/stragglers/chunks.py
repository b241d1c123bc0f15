"""Model chunks of passes, gathers and reductions, where a table does not say them.

A micro-batch has one forward pass on each chunk of a worker: the n-th is that of chunk n; backward
passes begin with the last chunk. So do reductions of gradients; gathers of parameters begin with
the first.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Integers, Offsets, place_in_segment, segment_starts
from bfpp.traces.stragglers.kinds import BACKWARD, FORWARD, GRADIENTS, PARAMETERS
from bfpp.traces.timeline.operation_table import OperationTable

ASCENDING = {FORWARD: True, BACKWARD: False, PARAMETERS: True, GRADIENTS: False}
"""By kind, whether the first chunk comes first."""


def with_chunks(table: OperationTable) -> OperationTable:
    """The table, with chunks if it has none but micro-batches."""
    passes = _of_kinds(table, FORWARD, BACKWARD)
    if (table.chunk != NONE).any() or not passes.any() or (table.microbatch[passes] < 0).any():
        return table
    nth = np.zeros(len(table), dtype=np.int32)
    nth[passes] = _places(table, passes, table.microbatch)
    chunks = int(nth.max()) + 1
    for kind in (PARAMETERS, GRADIENTS):
        rows = _of_kinds(table, kind)
        place, count = _places(table, rows), _counts(table, rows)
        nth[rows] = place * chunks // count
    chunk = np.full(len(table), NONE, dtype=np.int32)
    for kind, is_ascending in ASCENDING.items():
        rows = _of_kinds(table, kind)
        chunk[rows] = nth[rows] if is_ascending else chunks - 1 - nth[rows]
    return replace(table, chunk=chunk)


def _of_kinds(table: OperationTable, *kinds: str) -> Flags:
    return np.isin(table.kind, [table.kinds.index(kind) for kind in kinds if kind in table.kinds])


def _groups(table: OperationTable, rows: Flags, *more: Integers) -> tuple[Offsets, Flags]:
    """The order of these rows by worker's step and kind, and where each of these begins."""
    keys = (table.step, table.replica, table.rank, table.kind, *more)
    columns = [key[rows] for key in keys]
    order = np.lexsort((table.nth[rows], *columns[::-1]))
    return order, segment_starts(*(column[order] for column in columns))


def _places(table: OperationTable, rows: Flags, *more: Integers) -> Integers:
    """The place of each of these rows among its worker's step and kind (and what `more` says)."""
    order, begins = _groups(table, rows, *more)
    place = np.empty(len(order), dtype=np.int32)
    place[order] = place_in_segment(begins) if len(order) else []
    return place


def _counts(table: OperationTable, rows: Flags) -> Integers:
    """The number of those that each of these rows has its place among."""
    order, begins = _groups(table, rows)
    group = np.cumsum(begins) - 1
    count = np.empty(len(order), dtype=np.int32)
    count[order] = np.bincount(group)[group] if len(order) else []
    return count

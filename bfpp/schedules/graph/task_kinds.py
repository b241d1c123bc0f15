"""Kinds of tasks: those that differ in micro-batch and buffers alone, and so cost the same."""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.core import graph as core
from bfpp.schedules.columns import Flags, Integers, Offsets, among
from bfpp.schedules.operations.data import OUTPUT
from bfpp.schedules.operations.operations import (
    OPERATIONS,
    Operation,
    compute_steps,
    transfers,
    writers,
)

SLICES = 4096
"""Size of the cache of lists of kinds, by their operations."""


class OperationFlags(NamedTuple):
    """For each code, whether it is of a micro-batch, a transfer, computes, and does so backward.

    `place` is its number among all, those of micro-batches first.
    """

    of_cell: Flags
    place: Integers
    is_transfer: Flags
    is_compute: Flags
    is_backward: Flags


def operation_flags() -> OperationFlags:
    """The flags of all operations that are declared by now."""
    return _operation_flags(len(OPERATIONS))


@cache
def _operation_flags(number: int) -> OperationFlags:
    codes = np.arange(number)
    is_compute = among(codes, compute_steps())
    of_cell = np.array([each.is_of_cell for each in OPERATIONS[:number]])
    place = np.empty(number, dtype=np.int32)
    place[np.argsort(~of_cell, kind="stable")] = codes
    is_backward = is_compute & ~among(codes, writers(OUTPUT))
    return OperationFlags(of_cell, place, among(codes, transfers()), is_compute, is_backward)


class SomeKinds(NamedTuple):
    """Some of a graph's kinds: their `place` among all, and the `first` task of each.

    Their `codes` are the same in all graphs on the same stages.
    """

    place: slice
    codes: bytes
    operation: npt.NDArray[np.int8]
    first: Integers

    @property
    def is_transfer(self) -> Flags:
        """Mask of the transfers."""
        return operation_flags().is_transfer.take(self.operation)

    def by_operation(self) -> tuple[tuple[Operation, slice], ...]:
        """Each operation present, with its slice of these kinds."""
        return _operation_slices(self.operation.tobytes())


class Kinds(NamedTuple):
    """Tasks that differ in their micro-batch and buffers alone: the `first` of each kind.

    `cells` are the kinds of tasks of a micro-batch, which come first; `others` those of all other
    tasks.
    """

    codes: Offsets
    first: Integers
    of_task: Integers
    cells: SomeKinds
    others: SomeKinds


@lru_cache(SLICES)
def _operation_slices(operations: bytes) -> tuple[tuple[Operation, slice], ...]:
    """Each operation of some codes in order, and where it is among them."""
    codes = np.frombuffer(operations, np.int8)
    bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    return tuple(
        (OPERATIONS[codes[begin]], slice(begin, end))
        for begin, end in pairwise(bounds)
        if begin < end
    )


def kinds_of(columns: core.KindColumns, operation: npt.NDArray[np.int8]) -> Kinds:
    """Kinds, with those of a micro-batch's tasks apart; `operation` is that of each task."""
    codes, first, of_task = columns
    operation = operation.take(first)

    def some(place: slice) -> SomeKinds:
        return SomeKinds(place, codes[place].tobytes(), operation[place], first[place])

    cells = int(np.count_nonzero(operation_flags().of_cell.take(operation)))
    return Kinds(codes, first, of_task, some(slice(cells)), some(slice(cells, len(codes))))

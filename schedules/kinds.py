"""Kinds of tasks: those that differ in their micro-batch and buffers alone, and so cost alike.

Costs are found for each kind, and those of kinds that are done for each micro-batch (`cells`) are
the same in all graphs on the same stages: a search finds them once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import Flags, Integers, Offsets
from bfpp.schedules.operations import OPERATIONS, Operation


class SomeKinds(NamedTuple):
    """Some of a graph's kinds: their `place` among all, and the `first` task of each.

    Their `codes` are the same in all graphs on the same stages.
    """

    place: Offsets
    codes: bytes
    operation: npt.NDArray[np.int8]
    first: Integers

    def by_operation(self) -> Iterator[tuple[Operation, slice]]:
        """Each operation that there is, and which of these kinds are of it."""
        operation = self.operation
        begin = np.flatnonzero(np.append(True, operation[1:] != operation[:-1])[: len(operation)])
        for own, bounds in zip(
            operation[begin].tolist(), pairwise([*begin.tolist(), len(operation)]), strict=True
        ):
            yield OPERATIONS[own], slice(*bounds)


class Kinds(NamedTuple):
    """Tasks that differ in their micro-batch and buffers alone: the `first` of each kind.

    `cells` are the kinds of what is done for each micro-batch, `others` of what is done for all.
    """

    codes: Offsets
    first: Integers
    of_task: Integers
    cells: SomeKinds
    others: SomeKinds


def kinds_of(
    codes: Offsets, operation: npt.NDArray[np.int8], first: Integers, of_task: Integers
) -> Kinds:
    """Kinds by their codes, in order; `operation` is that of each."""

    def some(place: Offsets) -> SomeKinds:
        return SomeKinds(place, codes[place].tobytes(), operation[place], first[place])

    of_cells = _is_of_cell(len(OPERATIONS))[operation]
    return Kinds(
        codes, first, of_task, some(np.flatnonzero(of_cells)), some(np.flatnonzero(~of_cells))
    )


@cache
def _is_of_cell(number: int) -> Flags:
    """Of the first `number` operations, those of a micro-batch."""
    return np.array([each.is_of_cell for each in OPERATIONS[:number]])

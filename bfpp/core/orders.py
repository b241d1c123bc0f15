"""Compute orders of ranks: filled by rule, checked, and joined to one table of steps."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.core.library import function

PERIOD = 6
"""Passes and weight halves of a micro-batch on a rank of a V, as `source/repeated_block.c`."""

Integers = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]


class Orders(NamedTuple):
    """Columns of the orders of all ranks, one after the other, and where each one's begins."""

    operation: npt.NDArray[np.int8]
    stage: Integers
    microbatch: Integers
    fused: npt.NDArray[np.bool_]
    bounds: Offsets


class Fault(IntEnum):
    """Why orders cannot run, as `source/orders.h` has them."""

    NONE = 0
    OUTSIDE = 1
    MISPLACED = 2
    RUN_TWICE = 3
    IDLE_COPY = 4
    INCOMPLETE = 5
    WRONG_BLOCK = 6
    WRONG_SLICES = 7


class Steps(NamedTuple):
    """The compute steps of all ranks, rank by rank in each one's order, a step for each unit.

    `before` is the step whose output a step needs (its input, or the gradient of its output),
    `block` the first of the two steps of its block, if it is in one, `round` the turn in which it
    can run. `bounds` has the first step of each rank, and the end of the last rank's.
    """

    operation: Integers
    rank: Integers
    unit: Integers
    microbatch: Integers
    before: Integers
    block: Integers
    round: Integers
    bounds: Offsets


def in_sequences(
    stages: Integers,
    stage_start: Offsets,
    microbatches: int,
    sequence: int,
    ahead: Offsets,
    late: Offsets | None = None,
) -> Orders:
    """Orders of ranks with these `stages`: sequences of micro-batches, after a warm-up.

    With `late`, backward passes are in halves.
    """
    ranks, kinds = len(ahead), 2 if late is None else 3
    columns = _columns(steps := kinds * microbatches * len(stages))
    function("in_sequences")(
        ranks, len(stages), steps, microbatches, sequence, stages, stage_start, ahead, late,
        *columns,
    )  # fmt: skip
    return _of_passes(columns, kinds * microbatches * stage_start)


def repeat_block(first: Integers, microbatches: int) -> Orders:
    """Orders of a building block that repeats, given the slots of its legs: a row for each rank."""
    ranks, _ = first.shape
    of_rank = PERIOD * microbatches
    columns = _columns(ranks * of_rank)
    function("repeat_block")(ranks, microbatches, first, *columns)
    return _of_passes(columns, of_rank * np.arange(ranks + 1))


def _columns(steps: int) -> tuple[npt.NDArray[np.int8], Integers, Integers]:
    """Columns of operations, stages and micro-batches, to be filled."""
    return np.empty(steps, dtype=np.int8), *np.empty((2, steps), dtype=np.int32)


def _of_passes(columns: tuple[npt.NDArray[np.int8], Integers, Integers], bounds: Offsets) -> Orders:
    """Orders without blocks."""
    return Orders(*columns, np.zeros(len(columns[0]), dtype=np.bool_), bounds)


def find_fault(
    orders: Orders, placements: Integers, microbatches: int, slices: int
) -> tuple[Fault, list[int]]:
    """Why orders cannot run, and where; `placements` has the rank of each copy of each stage."""
    copies, stages = placements.shape
    where = np.zeros(5, dtype=np.int64)
    fault = function("find_fault")(
        len(orders.bounds) - 1, len(orders.stage), stages, copies, microbatches, slices,
        *orders, placements, where,
    )  # fmt: skip
    return Fault(fault), where.tolist()


def join_orders(
    orders: Orders, units_of_stage: Integers, microbatches: int
) -> tuple[Steps, Offsets]:
    """The table of steps of orders without a fault, and the step that each rank gets to.

    That is its end, unless it waits for ever.
    """
    ranks, joined = len(orders.bounds) - 1, int(units_of_stage[orders.stage].sum())
    columns = np.empty((7, joined), dtype=np.int32)
    bounds, reached = np.empty(ranks + 1, dtype=np.int64), np.empty(ranks, dtype=np.int64)
    function("join_orders")(
        ranks, len(orders.stage), len(units_of_stage), joined, microbatches,
        *orders, units_of_stage, *columns, bounds, reached,
    )  # fmt: skip
    return Steps._make([*columns, bounds]), reached


def time_orders(steps: Steps, ranks: int, seconds: Seconds) -> Seconds:
    """When the last step ends, if nothing but compute takes time.

    For each of some costs: a row of `seconds` a pass, by its code, in columns over units.
    """
    costs, _, units = seconds.shape
    ends = np.empty(costs)
    function("time_orders")(
        ranks, units, len(steps.rank), costs, steps.operation, steps.rank, steps.unit,
        steps.before, steps.round, seconds, ends,
    )  # fmt: skip
    return ends

"""The compute steps of all ranks as one table: complete, joined, and replayed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from bfpp.core.orders import Fault, Offsets, Orders, Steps, find_fault, join_orders
from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.schedules.orders.steps import Order, joined, wrong_block


class Deadlock(InvalidConfiguration):
    """Orders in which some rank waits for ever."""

    def __init__(self, reason: str) -> None:
        super().__init__("schedule", reason)


def step_table(orders: Sequence[Order], layout: Layout) -> Steps:
    """Join the orders; raises `InvalidConfiguration` where they cannot run."""
    return table_of(joined(orders), layout)


def table_of(orders: Orders, layout: Layout) -> Steps:
    """The table of the orders of all ranks as columns; raises like `step_table`."""
    placements = np.array([layout.placement, *layout.copies], dtype=np.int32)
    fault, where = find_fault(orders, placements, layout.microbatches, layout.slices)
    if fault is not Fault.NONE:
        raise InvalidConfiguration("schedule", REASONS[fault](orders, layout, where))
    units = np.array(layout.units_per_stage, dtype=np.int32)
    steps, reached = join_orders(orders, units, layout.microbatches)
    if (reached < steps.bounds[1:]).any():
        _refuse_deadlock(steps, reached, layout)
    return steps


def _outside(orders: Orders, layout: Layout, where: list[int]) -> str:
    del layout
    at = where[0]
    rank = int(np.searchsorted(orders.bounds, at, side="right")) - 1
    return (
        f"rank {rank} runs a step outside the layout: operation {orders.operation[at]}, "
        f"stage {orders.stage[at]}, micro-batch {orders.microbatch[at]}"
    )


def _misplaced(orders: Orders, layout: Layout, where: list[int]) -> str:
    at, rank = where[:2]
    stage = int(orders.stage[at])
    ranks = [placement[stage] for placement in (layout.placement, *layout.copies)]
    holders = " and ".join(f"rank {holder}" for holder in ranks)
    hold = "hold" if layout.copies else "holds"
    return f"rank {rank} runs stage {stage}, which {holders} {hold}"


def _run_twice(orders: Orders, layout: Layout, where: list[int]) -> str:
    del layout
    at, rank, other = where[:3]
    return (
        f"ranks {other} and {rank} both run stage {orders.stage[at]}, "
        f"micro-batch {orders.microbatch[at]}"
    )


def _idle_copy(orders: Orders, layout: Layout, where: list[int]) -> str:
    del orders, layout
    rank, stage = where[:2]
    return f"rank {rank} runs no micro-batch of its copy of stage {stage}"


def _incomplete(orders: Orders, layout: Layout, where: list[int]) -> str:
    del orders
    cell, forwards, wholes, inputs, weights = where
    return (
        f"stage {cell // layout.microbatches}, micro-batch {cell % layout.microbatches} must run "
        f"forward once and backward once (whole, or input and weight halves), "
        f"not {forwards} times forward, {wholes} whole, {inputs} input and {weights} weight"
    )


def _wrong_block(orders: Orders, layout: Layout, where: list[int]) -> str:
    del layout
    at, rank = where[:2]
    end = min(at + 2, int(orders.bounds[rank + 1]))
    steps = zip(*(column[at:end].tolist() for column in orders[:4]), strict=True)
    return f"rank {rank}: {wrong_block(list(steps))}"


def _wrong_slices(orders: Orders, layout: Layout, where: list[int]) -> str:
    del orders, layout
    stage, microbatch = where[:2]
    return (
        f"stage {stage} runs the slices of micro-batch {microbatch} in another order than "
        "forward in turn and backward in reverse"
    )


REASONS = {
    Fault.OUTSIDE: _outside,
    Fault.MISPLACED: _misplaced,
    Fault.RUN_TWICE: _run_twice,
    Fault.IDLE_COPY: _idle_copy,
    Fault.INCOMPLETE: _incomplete,
    Fault.WRONG_BLOCK: _wrong_block,
    Fault.WRONG_SLICES: _wrong_slices,
}
"""The message of each fault, from the places that `find_fault` returns."""


def _refuse_deadlock(steps: Steps, reached: Offsets, layout: Layout) -> NoReturn:
    def describe(step: int) -> str:
        operation = OPERATIONS[int(steps.operation[step])].title
        where = layout.name_of(int(steps.unit[step]))
        return f"{operation} of {where} micro-batch {steps.microbatch[step]}"

    stuck = [
        f"rank {rank} waits in {describe(step)} for {describe(int(steps.before[step]))}"
        for rank, step in enumerate(reached.tolist())
        if step < steps.bounds[rank + 1]
    ]
    raise Deadlock("deadlock: " + "; ".join(stuck))

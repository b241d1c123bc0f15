"""The compute steps of all ranks as one table: complete, joined, and replayed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import NONE, Flags, Integers, among
from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.operations.data import GRADIENTS, INPUT_GRADIENT, OUTPUT
from bfpp.schedules.operations.operations import OPERATIONS, Operation, of_scope, writers
from bfpp.schedules.operations.row import Scope
from bfpp.schedules.orders.steps import Order, in_units, wrong_block

BEFORE = -1
"""The round before the first compute step."""


class Deadlock(InvalidConfiguration):
    """Orders in which some rank waits for ever."""

    def __init__(self, reason: str) -> None:
        super().__init__("schedule", reason)


class Steps(NamedTuple):
    """All compute steps, rank by rank in each rank's order, a step for each unit.

    `before` is the step whose output a step needs (its input, or the gradient
    of its output), `block` the first of the two steps of its block, if it is in one,
    `first_of_rank` where each rank's steps begin, `round` the turn in which a step can run.
    """

    operation: Integers
    rank: Integers
    unit: Integers
    microbatch: Integers
    before: Integers
    block: Integers
    first_of_rank: npt.NDArray[np.int64]
    round: Integers

    @property
    def is_forward(self) -> Flags:
        """Forward passes; the others are backward passes or their halves."""
        return np.equal(self.operation, Operation.FORWARD)

    @property
    def trains(self) -> bool:
        """True if there are backward passes: forward passes alone evaluate a model."""
        return not self.is_forward.all()

    @property
    def produces_input_grad(self) -> Flags:
        """The steps that make the gradient of their unit's input."""
        return among(self.operation, writers(INPUT_GRADIENT))

    @property
    def adds_gradients(self) -> Flags:
        """The steps that add to the gradients of their unit's weights."""
        return among(self.operation, of_scope(Scope.CELL, writers(GRADIENTS)))


def step_table(orders: Sequence[Order], layout: Layout) -> Steps:
    """Join the orders; raises `InvalidConfiguration` where they cannot run."""
    _require_complete(*_joined(orders), layout)
    _require_blocks(orders)
    _require_slices(np.concatenate(orders), layout)
    steps, rank = _joined([in_units(order, layout) for order in orders])
    second = np.append(False, steps["fused"][:-1])
    block = np.arange(len(steps), dtype=np.int32) - second
    table = Steps(
        steps["operation"].astype(np.int32),
        rank,
        steps["stage"],
        steps["microbatch"],
        before=np.empty(0, np.int32),
        block=np.where(steps["fused"] | second, block, NONE),
        first_of_rank=np.searchsorted(rank, np.arange(len(orders) + 1)),
        round=np.empty(0, np.int32),
    )
    table = table._replace(before=_inputs(table, layout))
    return table._replace(round=_rounds(table, layout))


def _joined(orders: Sequence[Order]) -> tuple[Order, Integers]:
    """The steps of all ranks, and the rank of each."""
    rank = np.arange(len(orders), dtype=np.int32)
    return np.concatenate(orders), np.repeat(rank, [len(order) for order in orders])


def _require_blocks(orders: Sequence[Order]) -> None:
    """Refuse blocks that are not a forward and a whole backward pass, of two micro-batches."""
    for rank, order in enumerate(orders):
        for at in np.flatnonzero(order["fused"]).tolist():
            if reason := wrong_block(order[at : at + 2].tolist()):
                raise InvalidConfiguration("schedule", f"rank {rank}: {reason}")


def _require_slices(steps: Order, layout: Layout) -> None:
    """Refuse slices of a micro-batch that are not in order forward, and in reverse backward."""
    for operations, direction in ((writers(OUTPUT), 1), (writers(INPUT_GRADIENT), -1)):
        place = np.flatnonzero(among(steps["operation"], operations))
        place = place[np.lexsort((steps["microbatch"][place], steps["stage"][place]))]
        in_order = direction * np.diff(place.reshape(-1, layout.slices), axis=1) > 0
        if not in_order.all():
            stage, microbatch = divmod(
                int(np.argmin(in_order.all(axis=1))), layout.whole_microbatches
            )
            raise InvalidConfiguration(
                "schedule",
                f"stage {stage} runs the slices of micro-batch {microbatch} in another order than "
                "forward in turn and backward in reverse",
            )


def _require_complete(steps: Order, rank: Integers, layout: Layout) -> None:
    """Refuse orders that miss, repeat or misplace a step; those without any backward are whole."""
    operation = steps["operation"].astype(np.int32)
    stage, microbatch = steps["stage"], steps["microbatch"]
    inside = (stage >= 0) & (stage < layout.stages)
    inside &= (microbatch >= 0) & (microbatch < layout.microbatches)
    inside &= (operation >= 0) & (operation <= Operation.BACKWARD_WEIGHT)
    if not inside.all():
        at = int(np.argmin(inside))
        raise InvalidConfiguration(
            "schedule",
            f"rank {rank[at]} runs a step outside the layout: operation {operation[at]}, "
            f"stage {stage[at]}, micro-batch {microbatch[at]}",
        )
    placements = np.array([layout.placement, *layout.copies], dtype=np.int32)
    if not (placed := (placements[:, stage] == rank).any(axis=0)).all():
        at = int(np.argmin(placed))
        holders = " and ".join(f"rank {holder}" for holder in placements[:, stage[at]])
        raise InvalidConfiguration(
            "schedule",
            f"rank {rank[at]} runs stage {stage[at]}, "
            f"which {holders} {'hold' if layout.copies else 'holds'}",
        )
    cell = stage.astype(np.int64) * layout.microbatches + microbatch
    cells = layout.stages * layout.microbatches
    rank_of_cell = np.empty(cells, dtype=np.int32)
    rank_of_cell[cell] = rank
    if (apart := rank_of_cell[cell] != rank).any():
        at = int(np.argmax(apart))
        raise InvalidConfiguration(
            "schedule",
            f"ranks {rank[at]} and {rank_of_cell[cell[at]]} both run stage {stage[at]}, "
            f"micro-batch {microbatch[at]}",
        )
    idle = np.setdiff1d(placements * layout.stages + np.arange(layout.stages),
                        rank * layout.stages + stage)  # fmt: skip
    if layout.copies and len(idle):
        holder, of = divmod(int(idle[0]), layout.stages)
        raise InvalidConfiguration(
            "schedule", f"rank {holder} runs no micro-batch of its copy of stage {of}"
        )
    times = np.stack([np.bincount(cell[operation == kind], minlength=cells) for kind in range(4)])
    forwards, wholes, inputs, weights = times
    backward = int((operation != Operation.FORWARD).any())
    complete = (forwards == 1) & (wholes + inputs == backward) & (inputs == weights)
    if not complete.all():
        at = int(np.argmin(complete))
        raise InvalidConfiguration(
            "schedule",
            f"stage {at // layout.microbatches}, micro-batch {at % layout.microbatches} must run "
            f"forward once and backward once (whole, or input and weight halves), "
            f"not {forwards[at]} times forward, {wholes[at]} whole, {inputs[at]} input and "
            f"{weights[at]} weight",
        )


def _inputs(steps: Steps, layout: Layout) -> Integers:
    """For each step, the one whose output it needs; `NONE` for the first unit's forwards."""
    cell = steps.unit.astype(np.int64) * layout.microbatches + steps.microbatch
    cells = layout.units * layout.microbatches
    numbers = np.arange(len(cell), dtype=np.int32)
    forward_of = np.empty(cells, dtype=np.int32)
    gradient_of = np.empty(cells, dtype=np.int32)
    forward_of[cell[steps.is_forward]] = numbers[steps.is_forward]
    gradient_of[cell[steps.produces_input_grad]] = numbers[steps.produces_input_grad]

    before = np.full(len(cell), NONE, dtype=np.int32)
    follows = steps.is_forward & (steps.unit > 0)
    before[follows] = forward_of[cell[follows] - layout.microbatches]
    turns = steps.produces_input_grad & (steps.unit == layout.units - 1)
    before[turns] = forward_of[cell[turns]]
    returns = steps.produces_input_grad & (steps.unit < layout.units - 1)
    before[returns] = gradient_of[cell[returns] + layout.microbatches]
    weight = steps.operation == Operation.BACKWARD_WEIGHT
    before[weight] = gradient_of[cell[weight]]
    return before


def _rounds(steps: Steps, layout: Layout) -> Integers:
    """The turn of each step, when every rank runs one step a turn as soon as it can.

    The steps of a block share the turn of the second one, which is when it ends: what the
    first one waits for is there by then too.
    """
    in_block = steps.block != NONE
    ends = np.where(in_block, steps.block + 1, np.arange(len(steps.block)))
    before = np.where(steps.before == NONE, NONE, ends[steps.before]).tolist()
    bounds = steps.first_of_rank.tolist()
    ranks = len(bounds) - 1
    at, clock = bounds[:-1], [BEFORE] * ranks
    rounds = [BEFORE] * len(before)
    waiting: dict[int, list[int]] = {}
    ready = list(range(ranks))
    while ready:
        rank = ready.pop()
        now, end = clock[rank], bounds[rank + 1]
        for step in range(at[rank], end):
            needed = before[step]
            if needed >= 0:
                then = rounds[needed]
                if then < 0:
                    waiting.setdefault(needed, []).append(rank)
                    at[rank] = step
                    break
                if then > now:
                    now = then
            now += 1
            rounds[step] = now
            if step in waiting:
                ready += waiting.pop(step)
        else:
            at[rank] = end
        clock[rank] = now
    _require_finished(steps, layout, at)
    return np.array(rounds, dtype=np.int32)[ends]


def _require_finished(steps: Steps, layout: Layout, at: list[int]) -> None:
    def describe(step: int) -> str:
        operation = OPERATIONS[int(steps.operation[step])].title
        where = layout.name_of(int(steps.unit[step]))
        return f"{operation} of {where} micro-batch {steps.microbatch[step]}"

    stuck = [
        f"rank {rank} waits in {describe(step)} for {describe(int(steps.before[step]))}"
        for rank, step in enumerate(at)
        if step < steps.first_of_rank[rank + 1]
    ]
    if stuck:
        raise Deadlock("deadlock: " + "; ".join(stuck))

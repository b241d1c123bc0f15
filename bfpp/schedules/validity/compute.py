"""Rules for compute steps and the update: each once, and after its inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from bfpp.schedules.columns import among
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.operations.data import GRADIENTS, INPUT_GRADIENT, OUTPUT
from bfpp.schedules.operations.operations import (
    OPERATIONS,
    Operation,
    compute_steps,
    of_scope,
    readers,
    writers,
)
from bfpp.schedules.operations.row import Scope
from bfpp.schedules.validity.findings import (
    Finding,
    cells,
    having,
    of_cell,
    out_of_order,
    too_early,
)
from bfpp.schedules.validity.happens_before import HappensBefore

STEPS = (
    Operation.FORWARD,
    Operation.BACKWARD,
    Operation.BACKWARD_INPUT,
    Operation.BACKWARD_WEIGHT,
)

MADE_ONCE = (OUTPUT, INPUT_GRADIENT, GRADIENTS)
"""Data that every unit makes once of every micro-batch."""


def passes(graph: TaskGraph) -> Iterator[Finding]:
    """Every unit runs every micro-batch forward once, and backward once or in two halves.

    In an evaluation, none runs backward.
    """
    layout = graph.layout
    done = [having(graph, (operation,)) for operation in STEPS]
    run_cells = cells(graph, having(graph, compute_steps()))
    within = graph.layout.units * (layout.microbatches + 1)
    is_cell = np.arange(within) % (layout.microbatches + 1) != 0
    strange = run_cells[(run_cells < 0) | ~is_cell[run_cells.clip(0)]]
    right = np.ones(within, dtype=bool)
    for datum in MADE_ONCE if graph.trains else (OUTPUT,):
        made = cells(graph, having(graph, of_scope(Scope.CELL, writers(datum))))
        right &= np.bincount(made[made >= 0], minlength=within) == 1
    wrong = np.append(np.unique(strange), np.flatnonzero(is_cell & ~right))
    for cell in np.sort(wrong).tolist():
        where, which = of_cell(layout, cell)
        ran = [tasks[cells(graph, tasks) == cell].tolist() for tasks in done]
        forwards, wholes, inputs, weights = ran
        backward = "once backward (whole, or input and weight halves)"
        message = (
            f"{layout.name_of(where)} must run micro-batch {which} once forward and "
            f"{backward if graph.trains else 'not backward'}, not {len(forwards)} times forward, "
            f"{len(wholes)} whole, {len(inputs)} input and {len(weights)} weight"
        )
        yield message, (*forwards, *wholes, *inputs, *weights)


def precedence(graph: TaskGraph, order: HappensBefore) -> Iterator[Finding]:
    """Each step comes after those that make its inputs, and those that use data it frees."""
    seen = set()
    for first_operations, second_operation, shift in _precedence():
        firsts, seconds = having(graph, first_operations), having(graph, (second_operation,))
        for pair in out_of_order(order, firsts, seconds, shift):
            if pair not in seen:
                seen.add(pair)
                yield too_early(graph, *reversed(pair))


def _precedence() -> Iterator[tuple[tuple[Operation, ...], Operation, int]]:
    """Steps that come before another of the same micro-batch, and how many units on that is.

    Data in buffers have rules of their own, and transfers have.
    """
    for second in of_scope(Scope.CELL, OPERATIONS):
        for datum, units_on in second.reads:
            if datum.buffer is None:
                yield of_scope(Scope.CELL, writers(datum)), second, -units_on
        for datum in second.row.ends:
            yield of_scope(Scope.CELL, {*readers(datum)} - {second}), second, 0


def optimizer(graph: TaskGraph, order: HappensBefore) -> Iterator[Finding]:
    """Tasks of a rank's scope: once a step, and after all that they need.

    The update comes after all that the rank computes and reduces. With clipping, each
    rank takes the norm of its gradients once they are complete, and every update comes
    after every norm; without, there are none. An evaluation has none of this.
    """
    for operation in of_scope(Scope.RANK, OPERATIONS):
        times = int(graph.trains and operation.row.happens(graph.communication))
        yield from _once_a_rank(graph, operation, times)
    for operation in of_scope(Scope.RANK, OPERATIONS):
        needed = [datum for datum, _ in operation.reads]
        own = {each for datum in needed if not datum.of_all_ranks for each in writers(datum)}
        own |= {user for datum in operation.row.ends for user in readers(datum)}
        all_ranks = {each for datum in needed if datum.of_all_ranks for each in writers(datum)}
        yield from _after(graph, order, operation, own, same_rank=True)
        yield from _after(graph, order, operation, all_ranks, same_rank=False)


def _once_a_rank(graph: TaskGraph, operation: Operation, times: int) -> Iterator[Finding]:
    tasks, name = having(graph, (operation,)), operation.called(graph.communication)
    for rank in range(graph.layout.pp):
        own = tasks[graph.rank[tasks] == rank].tolist()
        if len(own) != times:
            yield f"rank {rank} has {len(own)} tasks {name}, not {times}", tuple(own)


def _after(
    graph: TaskGraph,
    order: HappensBefore,
    operation: Operation,
    needed: Collection[Operation],
    *,
    same_rank: bool,
) -> Iterator[Finding]:
    """Tasks of one operation come after all of others, on their own rank or on every one."""
    for task in having(graph, (operation,)).tolist():
        near = graph.rank_tasks.of(int(graph.rank[task])) if same_rank else np.arange(len(graph))
        work = near[among(graph.operation[near], needed)].astype(np.int32)
        for early in work[~order(work, np.full_like(work, task))].tolist():
            yield too_early(graph, task, early)

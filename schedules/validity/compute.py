"""Rules for compute steps and the update: each once, and after what it needs."""

from __future__ import annotations

from collections.abc import Iterator

from bfpp.schedules.graph import TaskGraph
from bfpp.schedules.steps import COMPUTE_STEPS, Operation
from bfpp.schedules.validity.findings import HANDS_ON, Finding, by_cell, having, too_early
from bfpp.schedules.validity.happens_before import HappensBefore


def passes(graph: TaskGraph) -> Iterator[Finding]:
    """Every stage runs every micro-batch forward once, and backward once or in two halves."""
    done = {operation: by_cell(graph, (operation,)) for operation in COMPUTE_STEPS}
    cells = {
        (stage, microbatch)
        for stage in range(graph.layout.stages)
        for microbatch in range(graph.layout.microbatches)
    }
    for cell in sorted(cells.union(*done.values())):
        forwards, wholes, inputs, weights = (
            done[operation].get(cell, []) for operation in COMPUTE_STEPS
        )
        once = len(forwards) == 1 and len(wholes) + len(inputs) == 1 and len(inputs) == len(weights)
        if cell not in cells or not once:
            message = (
                f"stage {cell[0]} must run micro-batch {cell[1]} once forward and once backward "
                f"(whole, or input and weight halves), not {len(forwards)} times forward, "
                f"{len(wholes)} whole, {len(inputs)} input and {len(weights)} weight"
            )
            yield message, (*forwards, *wholes, *inputs, *weights)


PRECEDENCE = (
    ((Operation.FORWARD,), (Operation.FORWARD,), +1),
    (HANDS_ON, HANDS_ON, -1),
    ((Operation.FORWARD,), HANDS_ON, 0),
    ((Operation.BACKWARD_INPUT,), (Operation.BACKWARD_WEIGHT,), 0),
)
"""Steps that come before others of the same micro-batch, and how many stages on those are."""


def precedence(graph: TaskGraph, order: HappensBefore) -> Iterator[Finding]:
    """Forward stage by stage, then backward in reverse; the input half before the weight half."""
    for first_operations, second_operations, shift in PRECEDENCE:
        seconds = by_cell(graph, second_operations)
        for (stage, microbatch), firsts in by_cell(graph, first_operations).items():
            for second in seconds.get((stage + shift, microbatch), []):
                for first in firsts:
                    if not order(first, second):
                        yield too_early(graph, second, first)


def optimizer(graph: TaskGraph, order: HappensBefore) -> Iterator[Finding]:
    """One update on each rank, after all that the rank computes and reduces.

    With clipping, each rank tells the norm of its gradients once they are
    complete, and every update comes after every norm; without, there are none.
    """
    work = (*COMPUTE_STEPS, Operation.REDUCE)
    yield from _once_a_rank(graph, Operation.OPTIMIZER, 1)
    yield from _once_a_rank(graph, Operation.NORM, int(graph.communication.clipping))
    yield from _after_own(graph, order, Operation.OPTIMIZER, work)
    yield from _after_own(graph, order, Operation.NORM, (Operation.REDUCE,))
    norms = having(graph, (Operation.NORM,))
    for update in having(graph, (Operation.OPTIMIZER,)).tolist():
        for norm in norms[~order.before(norms, update)].tolist():
            yield too_early(graph, update, norm)


def _once_a_rank(graph: TaskGraph, operation: Operation, times: int) -> Iterator[Finding]:
    tasks = having(graph, (operation,))
    for rank in range(graph.layout.pipeline_parallel):
        own = tasks[graph.rank[tasks] == rank].tolist()
        if len(own) != times:
            yield f"rank {rank} has {len(own)} tasks {operation.title}, not {times}", tuple(own)


def _after_own(
    graph: TaskGraph, order: HappensBefore, operation: Operation, needed: tuple[Operation, ...]
) -> Iterator[Finding]:
    """Tasks of one operation come after all that their rank does of others."""
    work = having(graph, needed)
    for task in having(graph, (operation,)).tolist():
        own = work[graph.rank[work] == graph.rank[task]]
        for early in own[~order.before(own, task)].tolist():
            yield too_early(graph, task, early)

"""Rules for weights and gradients: in the right buffer, whole, and in time.

A gather *serves* the steps that find its weights: it is the last one into their
weight buffer that happens before them. A reduction *covers* the steps whose
gradients it takes: it is the first one out of their gradient buffer that
happens after them. A gather or reduction of the same buffer that happens
neither before nor after a step may run beside it, and spoils it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator

import numpy as np

from bfpp.schedules.columns import NONE, Integers
from bfpp.schedules.communication import Sharding
from bfpp.schedules.graph import TaskGraph
from bfpp.schedules.operations import (
    GRADIENTS,
    INPUT_GRADIENT,
    WEIGHTS,
    Operation,
    Scope,
    compute_steps,
    enders,
    of_scope,
    readers,
    writers,
)
from bfpp.schedules.validity.findings import Finding, having
from bfpp.schedules.validity.happens_before import HappensBefore


def _fill() -> tuple[Operation, ...]:
    """What puts a unit's weights into a buffer."""
    return of_scope(Scope.UNIT, writers(WEIGHTS))


def _empty() -> tuple[Operation, ...]:
    """What takes a unit's gradients out of a buffer."""
    return of_scope(Scope.UNIT, enders(GRADIENTS))


def weights(graph: TaskGraph, order: HappensBefore) -> Iterator[Finding]:
    """Each step finds its unit's weights in its buffer, and nobody overwrites them."""
    for step, gather, racing in _served(graph, order):
        buffer = f"weight buffer {graph.weight_buffer[step]}"
        if gather == NONE:
            yield f"{graph.task(step)} finds nothing in {buffer}", (step,)
        elif graph.unit[gather] != graph.unit[step]:
            message = f"{graph.task(step)} finds in {buffer} what {graph.task(gather)} put there"
            yield message, (step, gather)
        for other in racing:
            message = f"{graph.task(other)} may overwrite {buffer} under {graph.task(step)}"
            yield message, (other, step)


def gradients(graph: TaskGraph, order: HappensBefore) -> Iterator[Finding]:
    """What a step adds to its buffer is reduced once, for its unit, and not while it adds."""
    for step, reduction, racing in _covered(graph, order):
        buffer = f"gradient buffer {graph.gradient_buffer[step]}"
        if reduction == NONE:
            yield f"{graph.task(step)} adds to {buffer} what nothing reduces", (step,)
        elif graph.unit[reduction] != graph.unit[step]:
            message = f"{graph.task(step)} adds to {buffer} what {graph.task(reduction)} takes"
            yield message, (step, reduction)
        for other in racing:
            message = f"{graph.task(other)} may empty {buffer} under {graph.task(step)}"
            yield message, (other, step)


def gathers(graph: TaskGraph, order: HappensBefore) -> Iterator[Finding]:
    """One gather for each unit (partial sharding) or each run (full), else none."""
    served = {step: gather for step, gather, _ in _served(graph, order)}
    yield from _one_each(graph, _fill(), served)


def reductions(graph: TaskGraph, order: HappensBefore) -> Iterator[Finding]:
    """One reduction for each unit, or (full sharding) for each backward run."""
    covered = {step: reduction for step, reduction, _ in _covered(graph, order)}
    yield from _one_each(graph, _empty(), covered)


Use = tuple[int, int, list[int]]
"""A step, the gather or reduction of what it uses (or -1), and those that may race with it."""


def _served(graph: TaskGraph, order: HappensBefore) -> Iterator[Use]:
    """Each step that needs gathered weights, with its gather."""
    if not any(operation.row.happens(graph.communication) for operation in _fill()):
        return
    into = _by_buffer(graph, _fill(), graph.weight_buffer)
    for step in having(graph, of_scope(Scope.CELL, readers(WEIGHTS))).tolist():
        found = into[int(graph.rank[step]), int(graph.weight_buffer[step])]
        before = order.before(found, step)
        racing = found[~before & ~order.after(step, found)].tolist()
        earlier = found[before]
        last = int(earlier[np.argmax(order.turn[earlier])]) if len(earlier) else NONE
        unordered = earlier[(earlier != last) & ~order.before(earlier, last)]
        yield step, last, racing + unordered.tolist()


def _covered(graph: TaskGraph, order: HappensBefore) -> Iterator[Use]:
    """Each step that adds gradients, with its reduction.

    An input half adds none, unless it names a gradient buffer nevertheless.
    """
    out_of = _by_buffer(graph, _empty(), graph.gradient_buffer)
    adds = of_scope(Scope.CELL, writers(GRADIENTS))
    for step in having(graph, {*adds, *writers(INPUT_GRADIENT)}).tolist():
        buffer = int(graph.gradient_buffer[step])
        if buffer == NONE and int(graph.operation[step]) not in adds:
            continue
        found = out_of[int(graph.rank[step]), buffer]
        after = order.after(step, found)
        racing = found[~after & ~order.before(found, step)].tolist()
        later = found[after]
        first = int(later[np.argmin(order.turn[later])]) if len(later) else NONE
        unordered = later[(later != first) & ~order.after(first, later)]
        yield step, first, racing + unordered.tolist()


def _by_buffer(
    graph: TaskGraph, operations: Collection[Operation], buffer: Integers
) -> defaultdict[tuple[int, int], Integers]:
    """The tasks of some operations, by the rank and the buffer that they use.

    What is done for both copies of a unit uses a buffer of that number at each.
    """
    lists: dict[tuple[int, int], list[int]] = {}
    for task in having(graph, operations).tolist():
        for rank in {int(graph.rank[task]), int(graph.peer[task])} - {NONE}:
            lists.setdefault((rank, int(buffer[task])), []).append(task)
    arrays = {key: np.array(tasks, dtype=np.int32) for key, tasks in lists.items()}
    return defaultdict(lambda: np.empty(0, dtype=np.int32), arrays)


def _own_of_each_unit(graph: TaskGraph) -> dict[int, str]:
    """For each compute step, its unit in words."""
    return {
        step: graph.layout.name_of(int(graph.unit[step]))
        for step in having(graph, compute_steps()).tolist()
    }


def _runs(graph: TaskGraph) -> dict[int, str]:
    """For each compute step, its run in words.

    A run is a stretch of one unit among a rank's forward steps, or among its
    backward steps.
    """
    runs: dict[int, str] = {}
    latest: dict[tuple[int, str], tuple[int, int]] = {}
    for step in having(graph, compute_steps()).tolist():
        which = "forward" if graph.operation[step] == Operation.FORWARD else "backward"
        sequence, unit = (int(graph.rank[step]), which), int(graph.unit[step])
        if sequence not in latest or latest[sequence][0] != unit:
            latest[sequence] = unit, step
        runs[step] = (
            f"the {which} run of {graph.layout.name_of(unit)} that begins at #{latest[sequence][1]}"
        )
    return runs


USES: dict[Sharding, Callable[[TaskGraph], dict[int, str]]] = {
    Sharding.NONE: _own_of_each_unit,
    Sharding.PARTIAL: _own_of_each_unit,
    Sharding.FULL: _runs,
}
"""What has one gather (if any) and one reduction: a unit, or a run of it."""


def _one_each(
    graph: TaskGraph, operations: Collection[Operation], used: dict[int, int]
) -> Iterator[Finding]:
    """Every use has one task of these operations, and every such task is of one use."""
    use_of = USES[graph.communication.sharding](graph)
    uses: dict[int, set[str]] = {task: set() for task in having(graph, operations).tolist()}
    tasks: dict[str, set[int]] = {}
    for step, task in used.items():
        if task != NONE:
            uses[task].add(use_of[step])
            tasks.setdefault(use_of[step], set()).add(task)
    for task, sharing in uses.items():
        if not sharing:
            yield f"{graph.task(task)} is of no use", (task,)
        elif len(sharing) > 1:
            yield f"{graph.task(task)} is shared by {' and '.join(sorted(sharing))}", (task,)
    for use, several in tasks.items():
        if len(several) > 1:
            names = " and ".join(str(graph.task(task)) for task in sorted(several))
            yield f"{use} uses {len(several)} tasks, not one: {names}", tuple(sorted(several))

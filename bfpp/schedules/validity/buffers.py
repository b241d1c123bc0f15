"""Rules for weights and gradients: in the right buffer, whole, and in time.

A gather *serves* the steps that find its weights: it is the last one into their
weight buffer that happens before them. A reduction *covers* the steps whose
gradients it takes: it is the first one out of their gradient buffer that
happens after them. A gather or reduction of the same buffer that happens
neither before nor after a step may run at the same time, and spoils it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property, partial

import numpy as np

from bfpp.schedules.columns import NONE, Integers, Offsets, among, place_in_segment, segment_starts
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.operations.data import GRADIENTS, INPUT_GRADIENT, WEIGHTS
from bfpp.schedules.operations.operations import (
    Operation,
    compute_steps,
    enders,
    of_scope,
    readers,
    writers,
)
from bfpp.schedules.operations.row import Scope
from bfpp.schedules.validity.chains import Uses, nearest
from bfpp.schedules.validity.findings import Finding, having
from bfpp.schedules.validity.happens_before import HappensBefore

SPAN = np.int64(2**32)
"""Beyond all numbers of tasks and units: pairs of them are held as one number."""


def _fill() -> tuple[Operation, ...]:
    """The operations that put a unit's weights into a buffer."""
    return of_scope(Scope.UNIT, writers(WEIGHTS))


def _empty() -> tuple[Operation, ...]:
    """The operations that take a unit's gradients out of a buffer."""
    return of_scope(Scope.UNIT, enders(GRADIENTS))


class BufferUse:
    """The gather and the reduction of each step's buffers, computed once for several rules."""

    def __init__(self, graph: TaskGraph, order: HappensBefore) -> None:
        self.graph = graph
        self.order = order

    @cached_property
    def served(self) -> Uses:
        """Each step that needs gathered weights, with its gather."""
        graph = self.graph
        step = having(graph, of_scope(Scope.CELL, readers(WEIGHTS)))
        if not any(operation.row.happens(graph.communication) for operation in _fill()):
            step = step[:0]
        return nearest(self.order, step, having(graph, _fill()), graph.weight_buffer, ahead=False)

    @cached_property
    def covered(self) -> Uses:
        """Each step that adds gradients, with its reduction.

        An input half adds none, unless it names a gradient buffer nevertheless.
        """
        graph = self.graph
        adds = among(graph.operation, of_scope(Scope.CELL, writers(GRADIENTS)))
        produces = among(graph.operation, writers(INPUT_GRADIENT))
        adds |= produces & (graph.gradient_buffer != NONE)
        step = np.flatnonzero(adds).astype(np.int32)
        return nearest(self.order, step, having(graph, _empty()), graph.gradient_buffer, ahead=True)


def weights(buffers: BufferUse) -> Iterator[Finding]:
    """Each step finds its unit's weights in its buffer, and nobody overwrites them."""
    return _misuse(
        buffers.graph,
        buffers.served,
        "weight_buffer",
        "{step} finds nothing in {buffer}",
        "{step} finds in {buffer} what {other} put there",
        "{other} may overwrite {buffer} under {step}",
    )


def gradients(buffers: BufferUse) -> Iterator[Finding]:
    """Gradients of a step are reduced once, for its unit, and not while it adds them."""
    return _misuse(
        buffers.graph,
        buffers.covered,
        "gradient_buffer",
        "{step} adds to {buffer} what nothing reduces",
        "{step} adds to {buffer} what {other} takes",
        "{other} may empty {buffer} under {step}",
    )


def _misuse(
    graph: TaskGraph, uses: Uses, column: str, nothing: str, foreign: str, racing: str
) -> Iterator[Finding]:
    """A sentence for each step whose buffer nothing fills or empties, or another unit's task.

    Or a task that may run at the same time.
    """

    def describe(sentence: str, step: int, other: int) -> str:
        buffer = f"{column.replace('_', ' ')} {getattr(graph, column)[step]}"
        return sentence.format(step=graph.task(step), other=graph.task(other), buffer=buffer)

    for step, other in _not_of_its_unit(graph, uses):
        if other == NONE:
            yield describe(nothing, step, other), (step,)
        else:
            yield describe(foreign, step, other), (step, other)
    for step, other in uses.racing:
        yield describe(racing, step, other), (other, step)


def _not_of_its_unit(graph: TaskGraph, uses: Uses) -> list[tuple[int, int]]:
    """The steps whose gather or reduction is of another unit, or is none."""
    strange = uses.task == NONE
    strange |= graph.unit[uses.task] != graph.unit[uses.step]
    return list(zip(uses.step[strange].tolist(), uses.task[strange].tolist(), strict=True))


def gathers(buffers: BufferUse) -> Iterator[Finding]:
    """One gather for each unit (partial sharding, or once a step) or each run, else none."""
    per_run = buffers.graph.communication.gathers_runs
    yield from _one_each(buffers.graph, _fill(), buffers.served, per_run=per_run)


def reductions(buffers: BufferUse) -> Iterator[Finding]:
    """One reduction for each unit, or (full sharding) for each backward run."""
    per_run = buffers.graph.communication.reduces_runs
    yield from _one_each(buffers.graph, _empty(), buffers.covered, per_run=per_run)


def _runs(graph: TaskGraph) -> Integers:
    """For each task that is a compute step, the first one of its run.

    A run is a contiguous segment of one unit among a rank's forward steps, or among its backward
    steps, or as many of these as a run may have.
    """
    step = having(graph, compute_steps())
    backward = graph.operation[step] != Operation.FORWARD
    direction = graph.rank[step] * 2 + backward
    in_order = np.argsort(direction, kind="stable")
    step = step[in_order]
    begins = segment_starts(direction[in_order], graph.unit[step])
    if length := graph.communication.run_length:
        begins |= place_in_segment(begins) % length == 0
    run = np.full(len(graph), NONE, dtype=np.int32)
    run[step] = step[begins][np.cumsum(begins) - 1]
    return run


def _one_each(
    graph: TaskGraph, operations: Collection[Operation], uses: Uses, *, per_run: bool
) -> Iterator[Finding]:
    """Every use, a unit or a run of it, has one of these tasks, and every such task one use.

    Or one use at each copy of its unit.
    """
    use_of_step = _runs(graph) if per_run else graph.unit
    name_of = partial(_name_of_run, graph) if per_run else graph.layout.name_of
    used = uses.task != NONE
    step, task = uses.step[used], uses.task[used].astype(np.int64)
    use = use_of_step[step].astype(np.int64)
    of_copy = task * 2 + (graph.rank[step] != graph.rank[task])
    for each in np.setdiff1d(having(graph, operations), task).tolist():
        yield f"{graph.task(each)} is of no use", (each,)
    for each, sharing in _several(of_copy, use):
        yield (
            f"{graph.task(each // 2)} is shared by {' and '.join(sorted(map(name_of, sharing)))}",
            (each // 2,),
        )
    for each, several in _several(use, task):
        names = " and ".join(str(graph.task(one)) for one in several)
        yield f"{name_of(each)} uses {len(several)} tasks, not one: {names}", tuple(several)


def _several(of: Offsets, member: Offsets) -> Iterator[tuple[int, list[int]]]:
    """Each number in the first column that has more than one in the second, and those."""
    of, member = np.divmod(np.unique(of * SPAN + member), SPAN)
    numbers, times = np.unique(of, return_counts=True)
    for number in numbers[times > 1].tolist():
        yield number, member[of == number].tolist()


def _name_of_run(graph: TaskGraph, first: int) -> str:
    which = "forward" if graph.operation[first] == Operation.FORWARD else "backward"
    unit = graph.layout.name_of(int(graph.unit[first]))
    return f"the {which} run of {unit} that begins at #{first}"

"""The rule for slices of micro-batches: attention looks back, and gradients come back that way."""

from __future__ import annotations

from collections.abc import Iterator

from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.operations.data import INPUT_GRADIENT, OUTPUT
from bfpp.schedules.operations.operations import writers
from bfpp.schedules.validity.findings import Finding, having, out_of_order, too_early
from bfpp.schedules.validity.happens_before import HappensBefore


def slices(graph: TaskGraph, order: HappensBefore) -> Iterator[Finding]:
    """Every unit runs the slices of a micro-batch in order forward, and in reverse backward."""
    count = graph.layout.slices
    for made, on in ((OUTPUT, +1), (INPUT_GRADIENT, -1)):
        tasks = having(graph, writers(made))
        number = graph.microbatch[tasks]
        firsts = tasks[(number + on) // count == number // count]
        for first, second in out_of_order(order, firsts, tasks, microbatches_on=on):
            yield too_early(graph, second, first)

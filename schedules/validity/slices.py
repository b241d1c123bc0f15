"""The rule for slices of micro-batches: attention looks back, and gradients come back that way."""

from __future__ import annotations

from collections.abc import Iterator

from bfpp.schedules.graph import TaskGraph
from bfpp.schedules.operations import INPUT_GRADIENT, OUTPUT, writers
from bfpp.schedules.validity.findings import Finding, by_cell, too_early
from bfpp.schedules.validity.happens_before import HappensBefore


def slices(graph: TaskGraph, order: HappensBefore) -> Iterator[Finding]:
    """Every unit runs the slices of a micro-batch in order forward, and in reverse backward."""
    count = graph.layout.slices
    for made, before in ((OUTPUT, -1), (INPUT_GRADIENT, +1)):
        found = by_cell(graph, writers(made))
        for (unit, each), seconds in found.items():
            if (each + before) // count == each // count:
                for first in found.get((unit, each + before), []):
                    for second in seconds:
                        if not order(first, second):
                            yield too_early(graph, second, first)

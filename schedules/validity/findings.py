"""What rules say and where they look: the few words that all of them share."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from bfpp.schedules.columns import Integers
from bfpp.schedules.graph import TaskGraph
from bfpp.schedules.operations import Operation

Finding = tuple[str, tuple[int, ...]]
"""What breaks a rule: one sentence, and the numbers of the tasks that it names."""

Cell = tuple[int, int]
"""(unit, micro-batch)"""


def having(graph: TaskGraph, operations: Collection[Operation]) -> Integers:
    """The tasks of these operations, by number."""
    return np.flatnonzero(np.isin(graph.operation, list(operations))).astype(np.int32)


def by_cell(graph: TaskGraph, operations: Collection[Operation]) -> dict[Cell, list[int]]:
    """The tasks of these operations, by the unit and micro-batch that they are for."""
    cells: dict[Cell, list[int]] = {}
    for number in having(graph, operations).tolist():
        cell = int(graph.unit[number]), int(graph.microbatch[number])
        cells.setdefault(cell, []).append(number)
    return cells


def too_early(graph: TaskGraph, second: int, first: int) -> Finding:
    """That nothing keeps the second task from running before or beside the first."""
    message = f"{graph.task(second)} may start before {graph.task(first)} has ended"
    return message, (second, first)

"""The rule for tied parameters: gradients of both units are summed once, when complete."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.operations.operations import OPERATIONS, of_scope, writers
from bfpp.schedules.operations.row import Scope
from bfpp.schedules.validity.findings import Finding, having, too_early
from bfpp.schedules.validity.happens_before import HappensBefore


def tied(graph: TaskGraph, order: HappensBefore) -> Iterator[Finding]:
    """The gradients of tied parameters are added up once, after all reductions of both units.

    A single unit has nothing to add.
    """
    last = graph.layout.units - 1
    for operation in of_scope(Scope.ENDS, OPERATIONS):
        tasks = having(graph, (operation,))
        due = int(graph.trains and last > 0 and operation.row.happens(graph.communication))
        if len(tasks) != due:
            name = operation.called(graph.communication)
            yield f"there are {len(tasks)} tasks {name}, not {due}", tuple(tasks.tolist())
        needed = {writer for datum, _ in operation.reads for writer in writers(datum)}
        made = having(graph, of_scope(Scope.UNIT, needed))
        made = made[np.isin(graph.unit[made], (0, last))]
        for task in tasks.tolist():
            for early in made[~order(made, np.full_like(made, task))].tolist():
                yield too_early(graph, task, early)

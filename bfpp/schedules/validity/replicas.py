"""The rule for all-reduces across groups of replicas."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.operations.operations import OPERATIONS, of_scope, writers
from bfpp.schedules.operations.row import Scope
from bfpp.schedules.validity.findings import Finding, having, out_of_order, too_early
from bfpp.schedules.validity.happens_before import HappensBefore


def replicas(graph: TaskGraph, order: HappensBefore) -> Iterator[Finding]:
    """A unit's gradients are all-reduced across groups once, after all its reductions.

    A second time would add them up again, and a later reduction would never reach other groups.
    """
    layout = graph.layout
    for operation in of_scope(Scope.UNIT, OPERATIONS):
        tasks, needs = having(graph, (operation,)), operation.reads
        name = operation.called(graph.communication)
        due = int(graph.trains and operation.row.happens(graph.communication))
        times = np.bincount(graph.unit[tasks] + 1, minlength=layout.units + 1)[1:]
        for unit in np.flatnonzero(times != due).tolist() if needs else ():
            own = tuple(tasks[graph.unit[tasks] == unit].tolist())
            yield f"{layout.name_of(unit)} has {len(own)} tasks {name}, not {due}", own
        for datum, units_on in needs:
            made = having(graph, of_scope(Scope.UNIT, writers(datum)))
            for early, late in out_of_order(order, made, tasks, -units_on):
                yield too_early(graph, late, early)

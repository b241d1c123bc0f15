"""The rule for offloaded activations: each that leaves a device comes back, once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.operations.data import OFFLOADED
from bfpp.schedules.operations.operations import enders, writers
from bfpp.schedules.validity.findings import Finding, cells, having, of_cell


def offloads(graph: TaskGraph) -> Iterator[Finding]:
    """Every unit offloads a micro-batch once and reloads it once, or does neither.

    A device has nothing left of what it offloaded: a second copy to the host finds nothing, and a
    pass needs the first one back. An evaluation keeps nothing that could be offloaded.
    """
    tasks = [having(graph, of(OFFLOADED)) for of in (writers, enders)]
    of_tasks = [cells(graph, some) for some in tasks]
    within = graph.layout.units * (graph.layout.microbatches + 1)
    times = [np.bincount(each[each >= 0], minlength=within) for each in of_tasks]
    offloaded, reloaded = times
    for cell in np.flatnonzero((offloaded != reloaded) | (offloaded > int(graph.trains))).tolist():
        unit, microbatch = of_cell(graph.layout, cell)
        message = (
            f"{graph.layout.name_of(unit)} offloads micro-batch {microbatch} {offloaded[cell]} "
            f"times and reloads it {reloaded[cell]} times"
        )
        own = [some[of == cell].tolist() for some, of in zip(tasks, of_tasks, strict=True)]
        yield message, (*own[0], *own[1])

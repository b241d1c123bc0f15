"""The memory of each rank's devices over a step, by allocation and purpose.

Theory of operation. State, weights, gradients and workspaces are there all the time. Activations
come with the steps of the rank's compute, and go; between steps there is what has been saved. The
optimizer's step comes when they are gone. Offloaded activations are away while the order of passes
says so (`bfpp.schedules.graph.residency`).

Invariants:

- A moment is a compute step of a rank, or what follows it: what is allocated depends on the order
  of the compute lane, as it does in the executor, and not on how long anything takes.
- The highest moment is the peak of `bfpp.sim.memory.device_memory`, to the byte.

Rejected: intervals from the times of tasks. The same order would have another peak on another
cluster, and a search could not rule it out before it was simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.operations.operations import Operation
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.units.activations import UnitActivations
from bfpp.sim.costs.units.offloading import offloaded_bytes
from bfpp.sim.memory.activations_alive import passing_of_steps
from bfpp.sim.memory.device_memory import rank_memories
from bfpp.sim.memory.gradients_alive import units_alive
from bfpp.traces.timeline.memory_record import PARTS, MemoryRecord, copies_of, steps_of

STAYING = ("state", "weights", "gradients", "workspace")
"""The parts that stay allocated for the whole step."""


def memory_over_time(graph: TaskGraph, physical: PhysicalCosts) -> list[MemoryRecord]:
    """Memory of each rank over time."""
    others = [memory._asdict() for memory in rank_memories(graph, physical)]
    activations = units_alive(physical, graph.layout, graph.communication)
    return held_over_time(graph, activations, others, offloaded_bytes(physical, graph.layout))


def held_over_time(
    graph: TaskGraph,
    units: UnitActivations,
    others: Sequence[Mapping[str, float]],
    offloaded: Numbers,
) -> list[MemoryRecord]:
    """Memory of each rank over time: its units' activations, and `others`, as in `PARTS`.

    Of each unit, `offloaded` bytes are copied where the graph offloads it.
    """
    start, _ = graph.compute_tasks
    (saved, transient), after = passing_of_steps(graph, units)
    held = [
        _held(graph, rank, (saved[own], transient[own], after[own]), sizes)
        for rank, sizes in enumerate(others)
        for own in [slice(start[rank], start[rank + 1])]
    ]
    copied = offloaded / graph.layout.slices
    return [replace(each, copied=copied[graph.unit[copies_of(graph, each.rank)]]) for each in held]


def _held(
    graph: TaskGraph,
    rank: int,
    activations: tuple[Numbers, Numbers, Numbers],
    others: Mapping[str, float],
) -> MemoryRecord:
    updates = graph.operation[steps_of(graph, rank)] == Operation.OPTIMIZER
    nothing = np.zeros(len(updates))
    saved, transient, after = (np.append(each, nothing[updates]) for each in activations)
    staying = {PARTS[name]: nothing + others[name] for name in STAYING}
    passing = {"saved": saved, "transient": transient, "update": updates * others["update"]}
    left = {"saved": after, "transient": nothing, "update": nothing}
    during, then = (
        staying | {PARTS[name]: each[name] for name in each} for each in (passing, left)
    )
    return MemoryRecord(rank, during, then)

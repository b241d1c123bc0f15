"""The memory of each rank's devices over a step: what is allocated when, and for what.

State, weights, gradients and workspaces are there all the time. Activations come with the steps
of the rank's compute, and go; between steps there is what has been saved. The optimizer's step
comes when they are gone. The highest moment is the peak of `bfpp.sim.memory`.
"""

from __future__ import annotations

import numpy as np

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.columns import among
from bfpp.schedules.operations import SAVED, enders
from bfpp.sim.memory import Memory, activations_of_units, passing_of_steps, rank_memories
from bfpp.sim.physical import PhysicalCosts
from bfpp.traces.held import Held, steps_of
from bfpp.traces.memory import PARTS

STAYING = ("state", "weights", "gradients", "workspace")
"""What is there all the time."""


def memory_over_time(graph: TaskGraph, physical: PhysicalCosts) -> list[Held]:
    """What each rank holds."""
    start, tasks = graph.compute_tasks
    saved, transient = passing_of_steps(graph, physical)
    units = activations_of_units(physical, graph.layout)
    ends = among(graph.operation[tasks], enders(SAVED)) * units.saved[graph.unit[tasks]]
    after = np.maximum(saved - ends / graph.layout.slices, 0.0)
    return [
        _held(graph, rank, (saved[own], transient[own], after[own]), memory)
        for rank, memory in enumerate(rank_memories(graph, physical))
        for own in [slice(start[rank], start[rank + 1])]
    ]


def _held(
    graph: TaskGraph, rank: int, activations: tuple[Numbers, Numbers, Numbers], memory: Memory
) -> Held:
    saved, transient, after = activations
    updates = len(steps_of(graph, rank)) - len(saved)
    compute, update = np.zeros(len(saved)), np.zeros(updates)
    nothing = np.append(compute, update)
    staying = {PARTS[name]: nothing + getattr(memory, name) for name in STAYING}
    passing = {
        PARTS["saved"]: np.append(saved, update),
        PARTS["transient"]: np.append(transient, update),
        PARTS["update"]: np.append(compute, update + memory.update),
    }
    left = dict.fromkeys(passing, nothing) | {PARTS["saved"]: np.append(after, update)}
    return Held(rank, staying | passing, staying | left)

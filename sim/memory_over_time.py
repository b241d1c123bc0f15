"""The memory of each rank's devices over a step: what is allocated when, and for what.

State, weights, gradients and workspaces are there all the time. Activations come with the steps
of the rank's compute, and go; between steps there is what has been saved. The optimizer's step
comes when they are gone. The highest moment is the peak of `bfpp.sim.memory`.
"""

from __future__ import annotations

import numpy as np

from bfpp.schedules.columns import NONE, Integers, among
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.operations import SAVED, Operation, enders
from bfpp.sim.memory import (
    GIGABYTE,
    PARTS,
    Memory,
    activations_of_units,
    passing_of_steps,
    rank_memories,
)
from bfpp.sim.physical import PhysicalCosts
from bfpp.traces.memory import MemoryCurve
from bfpp.traces.timeline import Timeline

STAYING = ("state", "weights", "gradients", "workspace")
"""What is there all the time."""


def memory_over_time(timeline: Timeline, physical: PhysicalCosts) -> list[MemoryCurve]:
    """The curve of each rank."""
    graph = timeline.graph
    start, tasks = graph.compute_tasks
    saved, transient = passing_of_steps(graph, physical)
    units = activations_of_units(physical, graph.layout)
    ends = among(graph.operation[tasks], enders(SAVED)) * units.saved[graph.unit[tasks]]
    after = np.maximum(saved - ends / graph.layout.slices, 0.0)
    memories = rank_memories(graph, physical)
    curves = []
    for rank, memory in enumerate(memories):
        own = slice(start[rank], start[rank + 1])
        curves.append(
            _curve(timeline, rank, tasks[own], (saved[own], transient[own], after[own]), memory)
        )
    return curves


def _curve(
    timeline: Timeline,
    rank: int,
    steps: Integers,
    held: tuple[Numbers, Numbers, Numbers],
    memory: Memory,
) -> MemoryCurve:
    saved, transient, after = held
    begin, end = (each[steps] - timeline.first_start for each in (timeline.start, timeline.end))
    idle = np.append(begin[1:] > end[:-1], True)
    updates = timeline.graph.rank_tasks.of(rank)
    updates = updates[timeline.graph.operation[updates] == Operation.OPTIMIZER]
    update = timeline.start[updates] - timeline.first_start
    nothing = np.zeros(len(steps))
    # The moment after a step that another follows at once is no moment.
    moments = [
        np.concatenate([[0.0], begin, end[idle], update]),
        np.concatenate([[0.0], saved, after[idle], np.zeros(len(update))]),
        np.concatenate([[0.0], transient, nothing[idle], np.zeros(len(update))]),
        np.concatenate([[0.0], nothing, nothing[idle], np.full(len(update), memory.update)]),
        np.concatenate([[NONE], steps, np.full(idle.sum(), NONE), updates]),
    ]
    in_order = np.argsort(moments[0], kind="stable")
    time, *passing, task = (each[in_order] for each in moments)
    held_by = {name: np.full(len(time), getattr(memory, name)) for name in STAYING}
    held_by |= zip(("saved", "transient", "update"), passing, strict=True)
    parts = {PARTS[name]: size / GIGABYTE for name, size in held_by.items()}
    return MemoryCurve(rank, time, parts, task.astype(np.int32))

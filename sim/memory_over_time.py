"""The memory of each rank's devices over a step: what is allocated when, and for what.

State, weights, gradients and workspaces are there all the time. Activations come with the steps
of the rank's compute, and go; between steps there is what has been saved. The optimizer's step
comes when they are gone. The highest moment is the peak of `bfpp.sim.memory`. Offloaded activations
are gone from the end of their copy to the host until the one back begins; the peak of
`bfpp.sim.memory` is what this is at most, however slow copies are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import NONE, Integers, Seconds, among
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.operations import OFFLOADED, SAVED, Operation, enders, writers
from bfpp.sim.activations import activations_of_units
from bfpp.sim.memory import (
    GIGABYTE,
    PARTS,
    Memory,
    passing_of_steps,
    rank_memories,
)
from bfpp.sim.offloading import offloaded_bytes
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
        held = saved[own], transient[own], after[own]
        curve = _curve(timeline, rank, tasks[own], held, memory)
        curves.append(_offloaded(curve, timeline, physical))
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


def _offloaded(curve: MemoryCurve, timeline: Timeline, physical: PhysicalCosts) -> MemoryCurve:
    """The curve without what is on the host, with a moment at the end or begin of each copy."""
    away = away_over_time(timeline, physical, curve.rank)
    time = np.append(curve.time, away.time)
    before = np.searchsorted(curve.time, away.time, side="right") - 1
    source = np.append(np.arange(len(curve.time)), before)
    in_order = np.argsort(time, kind="stable")
    time, source = time[in_order], source[in_order]
    parts = {name: size[source] for name, size in curve.parts.items()}
    parts[PARTS["saved"]] -= away.at(time) / GIGABYTE
    task, copies = curve.task[source], np.append(curve.task, away.task)[in_order]
    return MemoryCurve(curve.rank, time, parts, np.where(task == NONE, copies, task))


class Away(NamedTuple):
    """When copies of a rank's activations leave and come back, and the bytes away from then on."""

    time: Seconds
    bytes: Numbers
    task: Integers

    def at(self, time: Seconds) -> Numbers:
        """Bytes that are on the host alone at some moments."""
        found: Numbers = np.append(0.0, self.bytes)[np.searchsorted(self.time, time, side="right")]
        return found


def away_over_time(timeline: Timeline, physical: PhysicalCosts, rank: int) -> Away:
    """What a rank has on the host alone."""
    graph = timeline.graph
    tasks = graph.rank_tasks.of(rank)
    leaves, returns = (among(graph.operation[tasks], of(OFFLOADED)) for of in (writers, enders))
    moment = np.where(leaves, timeline.end[tasks], timeline.start[tasks]) - timeline.first_start
    size = offloaded_bytes(physical, graph.layout)[graph.unit[tasks]] / graph.layout.slices
    change = leaves * size - returns * size
    copies = np.flatnonzero(leaves | returns)
    in_time = copies[np.argsort(moment[copies], kind="stable")]
    return Away(moment[in_time], np.cumsum(change[in_time]), tasks[in_time])

"""What the devices of a rank hold: the one form of a prediction and of a measurement.

A rank's steps are its compute steps, in order, and then its update. What is held belongs to them
and not to moments: with the times of a timeline it becomes a curve.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from bfpp.schedules import Operation, TaskGraph
from bfpp.schedules.columns import NONE, Integers, among
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.operations import OFFLOADED, RELOADED, enders, readers, writers
from bfpp.traces.memory import GIGABYTE, PARTS, MemoryCurve

if TYPE_CHECKING:
    from bfpp.traces.timeline import Timeline

Parts = Mapping[str, Numbers]


@dataclass(frozen=True, eq=False)
class Held:
    """Bytes of each part on a device of a rank, `during` each of its steps and right `after` it.

    A step of training begins with what is held after the update. Of the saved activations, each of
    the rank's copies to the host and back has `copied` bytes: they are counted as long as they are
    needed, and left out (`on_device`) while they are on the host alone.
    """

    rank: int
    during: Parts
    after: Parts
    copied: Numbers = field(default_factory=lambda: np.zeros(0))

    @cached_property
    def total(self) -> Numbers:
        """All parts together, during each step; with what is on the host."""
        total: Numbers = np.sum(list(self.during.values()), axis=0)
        return total

    @cached_property
    def peak(self) -> int:
        """The number of the first step during which most is held."""
        return int(self.total.argmax())

    def on_device(self, graph: TaskGraph) -> Held:
        """The same without what is on the host alone, however long copies take.

        It is away while the order of passes says so (`bfpp.schedules.absences`). Memory for what
        comes back is taken at the end of a step, before the next one begins and gives back that of
        what has left: where this is more than what is held later in that step, it counts for it.
        """
        saved = PARTS["saved"]
        if not len(self.copied) or saved not in self.during:
            return self
        leaving, coming = _moved_in_steps(graph, self)
        away = np.cumsum(leaving)
        away[1:] -= np.cumsum(coming)[:-1]
        after = {**self.after, saved: self.after[saved] - away + coming}
        during = {**self.during, saved: self.during[saved] - away}
        begin = {name: np.roll(part, 1) for name, part in after.items()}
        totals = (np.sum(list(each.values()), axis=0) for each in (begin, during))
        is_more = (leaving > 0) & np.greater(*totals)
        during = {name: np.where(is_more, begin[name], part) for name, part in during.items()}
        return Held(self.rank, during, after)

    def on_host(self, graph: TaskGraph) -> float:
        """The most bytes of host memory that are in use at a time.

        A buffer is in use from the offload to the backward pass that waits for the reload.
        """
        tasks = copies_of(graph, self.rank)
        leaves = among(graph.operation[tasks], writers(OFFLOADED))
        size = np.zeros((graph.layout.units, graph.layout.microbatches))
        cell = graph.unit[tasks[leaves]], graph.microbatch[tasks[leaves]]
        size[cell] = self.copied[leaves] if len(self.copied) else 0.0
        own = graph.rank_tasks.of(self.rank)
        change = among(graph.operation[own], writers(OFFLOADED)).astype(float)
        change -= among(graph.operation[own], readers(RELOADED))
        change *= size[graph.unit[own], graph.microbatch[own]]
        return float(np.cumsum(change).max(initial=0.0))

    def only(self, names: Collection[str]) -> Held:
        """The same of some parts."""
        during, after = ({name: each[name] for name in names} for each in (self.during, self.after))
        return Held(self.rank, during, after, self.copied)

    @property
    def at_peak(self) -> dict[str, float]:
        """The parts during that step."""
        return {name: float(part[self.peak]) for name, part in self.during.items()}


def steps_of(graph: TaskGraph, rank: int) -> Integers:
    """The tasks that are a rank's steps."""
    own = graph.rank_tasks.of(rank)
    updates = own[graph.operation[own] == Operation.OPTIMIZER]
    return np.concatenate([graph.compute_tasks.of(rank), updates])


def copies_of(graph: TaskGraph, rank: int) -> Integers:
    """The tasks that copy a rank's activations to the host, and those that copy them back."""
    own = graph.rank_tasks.of(rank)
    return own[among(graph.operation[own], (*writers(OFFLOADED), *enders(OFFLOADED)))]


def curves(timeline: Timeline, memory: Sequence[Held]) -> list[MemoryCurve]:
    """What each rank holds over time."""
    return [curve_of(timeline, held) for held in memory]


def curve_of(timeline: Timeline, held: Held) -> MemoryCurve:
    """What a rank holds on its devices over time."""
    held = held.on_device(timeline.graph)
    steps = steps_of(timeline.graph, held.rank)
    begin, end = (each[steps] - timeline.first_start for each in (timeline.start, timeline.end))
    # The moment after a step that another follows at once is no moment.
    idle = np.append(begin[1:] > end[:-1], True)
    time = np.concatenate([[0.0], begin, end[idle]])
    task = np.concatenate([[NONE], steps, np.full(idle.sum(), NONE)]).astype(np.int32)
    in_order = np.argsort(time, kind="stable")
    parts = {}
    for name, during in held.during.items():
        after = held.after[name]
        sizes = np.concatenate([after[-1:], during, after[idle]])
        parts[name] = sizes[in_order] / GIGABYTE
    return MemoryCurve(held.rank, time[in_order], parts, task[in_order])


def _moved_in_steps(graph: TaskGraph, held: Held) -> tuple[Numbers, Numbers]:
    """Bytes that are on the host alone from the begin of each of a rank's steps, or to its end."""
    found, copies = graph.absences, copies_of(graph, held.rank)
    own = (graph.rank[found.offload] == held.rank) & (found.leaves != NONE)
    size = held.copied[np.searchsorted(copies, found.offload[own])]
    steps = steps_of(graph, held.rank)
    leaves, returns = (np.searchsorted(steps, each[own]) for each in (found.leaves, found.returns))
    leaving, coming = np.zeros((2, len(steps)))
    np.add.at(leaving, leaves, size)
    np.add.at(coming, returns, size)
    return leaving, coming

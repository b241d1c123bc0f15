"""Memory curves: the memory of a rank's devices over a step, part by part.

A `MemoryRecord` has bytes in each of a rank's steps; with the times of a timeline they become a
curve. Where sizes are not known, micro-batches in flight are counted instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bfpp.schedules.columns import NONE, Integers, Seconds, among
from bfpp.schedules.graph.counts import live_microbatches
from bfpp.schedules.operations.data import SAVED
from bfpp.schedules.operations.operations import writers
from bfpp.traces.timeline.memory_record import MemoryRecord, steps_of
from bfpp.traces.timeline.timeline import Timeline
from bfpp.traces.timeline.units import GIGABYTE

IN_FLIGHT = "micro-batches in flight"


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """The memory of one rank's devices: `parts` hold GiB from each moment of `time` to the next.

    Moments are seconds from the step's first start. `task` is the compute step that runs then,
    or `NONE`.
    """

    rank: int
    time: Seconds
    parts: Mapping[str, Seconds]
    task: Integers

    @cached_property
    def total(self) -> Seconds:
        """All parts together."""
        total: Seconds = np.sum(list(self.parts.values()), axis=0)
        return total

    @cached_property
    def peak(self) -> int:
        """The first moment with the most memory, by number; one during a task, if there is one."""
        highest = np.flatnonzero(self.total == self.total.max())
        return int(highest[(self.task[highest] == NONE).argmin()])

    def thinned(self, moments: int) -> MemoryCurve:
        """The curve with fewer moments: from each equal stretch, the one with the most memory."""
        if len(self.time) <= moments:
            return self
        stretch = np.floor(self.time / self.time[-1] * (moments - 1))
        in_order = np.lexsort((-self.total, stretch))
        first = np.append(True, np.diff(stretch[in_order]) > 0)
        kept = np.sort(in_order[first])
        parts = {name: part[kept] for name, part in self.parts.items()}
        return MemoryCurve(self.rank, self.time[kept], parts, self.task[kept])


def in_flight_over_time(timeline: Timeline) -> list[MemoryCurve]:
    """For each rank, its in-flight micro-batches over time, the only part of these curves.

    They are counted, not GiB: one is all that the rank saves of a micro-batch. Activations are in
    flight from the start of the pass that saves them to the end of the one that needs them last.
    """
    graph, live = timeline.graph, live_microbatches(timeline.graph)
    saves = among(graph.operation, writers(SAVED))
    moment = np.where(saves, timeline.start, timeline.end) - timeline.first_start
    curves = []
    for rank in range(graph.layout.pp):
        own = timeline.compute_tasks(rank)
        own = own[np.argsort(moment[own], kind="stable")]
        time, held = np.append(0.0, moment[own]), np.append(0.0, live[own])
        curves.append(MemoryCurve(rank, time, {IN_FLIGHT: held}, np.append(NONE, own)))
    return curves


def fullest(curves: Sequence[MemoryCurve]) -> MemoryCurve:
    """The one with the highest peak, or the first of those."""
    return max(curves, key=lambda curve: (curve.total[curve.peak], -curve.rank))


def curves(timeline: Timeline, memory: Sequence[MemoryRecord]) -> list[MemoryCurve]:
    """The memory of each rank over time."""
    return [curve_of(timeline, record) for record in memory]


def curve_of(timeline: Timeline, record: MemoryRecord) -> MemoryCurve:
    """The memory of a rank's devices over time."""
    record = record.on_device(timeline.graph)
    steps = steps_of(timeline.graph, record.rank)
    begin, end = (each[steps] - timeline.first_start for each in (timeline.start, timeline.end))
    # The moment after a step that another follows at once is no moment.
    idle = np.append(begin[1:] > end[:-1], True)
    time = np.concatenate([[0.0], begin, end[idle]])
    task = np.concatenate([[NONE], steps, np.full(idle.sum(), NONE)]).astype(np.int32)
    in_order = np.argsort(time, kind="stable")
    parts = {}
    for name, during in record.during.items():
        after = record.after[name]
        sizes = np.concatenate([after[-1:], during, after[idle]])
        parts[name] = sizes[in_order] / GIGABYTE
    return MemoryCurve(record.rank, time[in_order], parts, task[in_order])

"""What the devices of a rank hold: the one form of a prediction and of a measurement.

A rank's steps are its compute steps, in order, and then its update. What is held belongs to them
and not to moments: with the times of a timeline it becomes a curve.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from bfpp.schedules import Operation, TaskGraph
from bfpp.schedules.columns import NONE, Integers
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.traces.memory import GIGABYTE, MemoryCurve

if TYPE_CHECKING:
    from bfpp.traces.timeline import Timeline

Parts = Mapping[str, Numbers]


@dataclass(frozen=True, eq=False)
class Held:
    """Bytes of each part on a device of a rank, `during` each of its steps and right `after` it.

    A step of training begins with what is held after the update.
    """

    rank: int
    during: Parts
    after: Parts

    @cached_property
    def total(self) -> Numbers:
        """All parts together, during each step."""
        total: Numbers = np.sum(list(self.during.values()), axis=0)
        return total

    @cached_property
    def peak(self) -> int:
        """The number of the first step during which most is held."""
        return int(self.total.argmax())

    def only(self, names: Collection[str]) -> Held:
        """The same of some parts."""
        during, after = ({name: each[name] for name in names} for each in (self.during, self.after))
        return Held(self.rank, during, after)

    @property
    def at_peak(self) -> dict[str, float]:
        """The parts during that step."""
        return {name: float(part[self.peak]) for name, part in self.during.items()}


def steps_of(graph: TaskGraph, rank: int) -> Integers:
    """The tasks that are a rank's steps."""
    own = graph.rank_tasks.of(rank)
    updates = own[graph.operation[own] == Operation.OPTIMIZER]
    return np.concatenate([graph.compute_tasks.of(rank), updates])


def curves(timeline: Timeline, memory: Sequence[Held]) -> list[MemoryCurve]:
    """What each rank holds over time."""
    return [_curve(timeline, held) for held in memory]


def _curve(timeline: Timeline, held: Held) -> MemoryCurve:
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

"""Memory of a rank's devices, step by step: one form for predictions and measurements.

A rank's steps are its compute steps, in order, and then its update. Bytes belong to these steps,
not to moments: with the times of a timeline they become a curve (`memory_curves`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from bfpp.schedules import Operation, TaskGraph
from bfpp.schedules.columns import NONE, Integers, among
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.operations.data import OFFLOADED, RELOADED
from bfpp.schedules.operations.operations import enders, readers, writers

Parts = Mapping[str, Numbers]

PARTS = {
    "state": "training state",
    "weights": "weights",
    "gradients": "gradients",
    "saved": "saved activations",
    "transient": "transient activations",
    "update": "optimizer step",
    "workspace": "workspaces",
}
"""Names of the parts of a device's memory."""


@dataclass(frozen=True, eq=False)
class MemoryRecord:
    """Bytes of each part on a device of a rank, `during` each of its steps and right `after` it.

    A training step begins with the memory after the last update. Each of the rank's copies of saved
    activations to the host and back has `copied` bytes: these count as long as they are needed, and
    `on_device` leaves them out while they are on the host alone.
    """

    rank: int
    during: Parts
    after: Parts
    copied: Numbers = field(default_factory=lambda: np.zeros(0))

    @cached_property
    def total(self) -> Numbers:
        """All parts together, during each step; with activations on the host."""
        total: Numbers = np.sum(list(self.during.values()), axis=0)
        return total

    @cached_property
    def peak(self) -> int:
        """The first step with the most memory, by number."""
        return int(self.total.argmax())

    def on_device(self, graph: TaskGraph) -> MemoryRecord:
        """The record without activations that are on the host alone.

        They are away by the order of passes (`bfpp.schedules.graph.residency`), however
        long copies take. Memory to reload into is taken at the end of a step, before the next one
        begins and frees that of offloaded activations: where this sum is larger than the memory
        later in that step, it counts for it.
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
        return MemoryRecord(self.rank, during, after)

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

    def only(self, names: Collection[str]) -> MemoryRecord:
        """The record of some parts."""
        during, after = ({name: each[name] for name in names} for each in (self.during, self.after))
        return MemoryRecord(self.rank, during, after, self.copied)

    @property
    def at_peak(self) -> dict[str, float]:
        """The parts at the peak, in bytes."""
        return {name: float(part[self.peak]) for name, part in self.during.items()}

    @property
    def has_saved(self) -> bool:
        """True if saved activations are among the parts: of some models they are not predicted."""
        return PARTS["saved"] in self.during

    @property
    def at_peak_in_bytes(self) -> dict[str, Any]:
        """The peak and its parts in whole bytes; a peak that leaves activations out is none."""
        known = self.has_saved and PARTS["transient"] in self.during
        parts = {name: round(size) for name, size in self.at_peak.items()}
        return {"peak": sum(parts.values()) if known else None, "parts": parts}


def steps_of(graph: TaskGraph, rank: int) -> Integers:
    """The tasks that are a rank's steps."""
    own = graph.rank_tasks.of(rank)
    updates = own[graph.operation[own] == Operation.OPTIMIZER]
    return np.concatenate([graph.compute_tasks.of(rank), updates])


def copies_of(graph: TaskGraph, rank: int) -> Integers:
    """The tasks that copy a rank's activations to the host, and those that copy them back."""
    own = graph.rank_tasks.of(rank)
    return own[among(graph.operation[own], (*writers(OFFLOADED), *enders(OFFLOADED)))]


def _moved_in_steps(graph: TaskGraph, record: MemoryRecord) -> tuple[Numbers, Numbers]:
    """Bytes on the host alone from the begin of each of a rank's steps, and up to its end."""
    away, copies = graph.absences, copies_of(graph, record.rank)
    own = (graph.rank[away.offload] == record.rank) & (away.leaves != NONE)
    size = record.copied[np.searchsorted(copies, away.offload[own])]
    steps = steps_of(graph, record.rank)
    leaves, returns = (np.searchsorted(steps, each[own]) for each in (away.leaves, away.returns))
    leaving, coming = np.zeros((2, len(steps)))
    np.add.at(leaving, leaves, size)
    np.add.at(coming, returns, size)
    return leaving, coming

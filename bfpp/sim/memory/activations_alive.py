"""Activations of a rank by its compute steps: alive during each, and at the peak of all.

A (stage, micro-batch) pass lives from its forward step to the end of its backward pass. The order
of a rank's compute lane alone decides how many are alive at once, so peaks need no times: a search
has those of a table of compute steps before there is a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bfpp.core.memory import find_peaks
from bfpp.schedules import Communication, Layout, TaskGraph
from bfpp.schedules.columns import NONE, Flags, Integers, among
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.operations.data import HALVED, OFFLOADED, SAVED, Datum
from bfpp.schedules.operations.operations import OPERATIONS, compute_steps, enders, writers
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.units.activations import UnitActivations
from bfpp.sim.costs.units.offloading import offloaded_bytes
from bfpp.sim.memory.gradients_alive import units_alive
from bfpp.traces.timeline.timeline import Timeline

Codes = npt.NDArray[np.integer]


class Passing(NamedTuple):
    """For each rank, bytes of saved and of transient activations when both need most."""

    saved: Numbers
    transient: Numbers


class ComputeSteps(Protocol):
    """Compute steps, those of each rank in its order: a table of them, or a graph's tasks."""

    @property
    def operation(self) -> Codes:
        """The operation of each."""

    @property
    def rank(self) -> Integers:
        """The rank of each."""

    @property
    def unit(self) -> Integers:
        """The unit of each."""

    @property
    def microbatch(self) -> Integers:
        """The micro-batch of each."""

    @property
    def block(self) -> Integers:
        """The number of the first step of its block."""


def passes_alive(timeline: Timeline, rank: int) -> tuple[Numbers, Numbers]:
    """At each of a rank's compute steps, the passes alive and the second halves pending.

    A (stage, micro-batch) pass lives from its forward step to the end of its
    backward pass, in the order of the rank's compute lane; its second half is
    pending from the start of the first.
    """
    operation = timeline.graph.operation[timeline.compute_tasks(rank)]
    each = np.ones(len(operation))
    return _alive(operation, SAVED, each).during, _alive(operation, HALVED, each).during


class _Alive(NamedTuple):
    """Bytes of some data during each step, and after it."""

    during: Numbers
    after: Numbers


def _alive(operation: Codes, data: Datum, size: Numbers) -> _Alive:
    """Bytes of data that were written and have not ended, each item of this `size`.

    The steps are those of a rank, or of several one after the other: each ends all it writes.
    """
    ends = among(operation, enders(data)) * size
    change = among(operation, writers(data)) * size
    change[1:] -= ends[:-1]
    during: Numbers = np.cumsum(change)
    return _Alive(during, during - ends)


def passing_of_steps(
    graph: TaskGraph, units: UnitActivations, shares: Numbers | None = None
) -> tuple[Passing, Numbers]:
    """Activations during each compute step, and all that it leaves; the steps rank by rank.

    Offloaded activations are included: `bfpp.traces.timeline.memory_record` leaves out what is on
    the host. A backward pass restores one layer at a time; what one in two halves holds from the
    first half to the end of the second is saved, except for that layer. The passes of a block are
    under way at once. `shares`: of each whole micro-batch, its tokens over those that `units` has.
    """
    _, tasks = graph.compute_tasks
    unit, operation = graph.unit[tasks], graph.operation[tasks]
    slices, share = graph.layout.slices, np.ones(len(tasks))
    if shares is not None:
        share = shares[graph.microbatch[tasks] // slices]
    saved = _alive(operation, SAVED, units.saved[unit] * share * graph.trains)
    halves = _alive(operation, HALVED, units.halved[unit] * share)
    # Rounding may leave a little of what has ended.
    kept = saved.during + np.maximum(halves.during - units.restored_layer[unit] * share, 0.0)
    left = np.maximum(saved.after + halves.after, 0.0)
    backward = graph.trains & ~among(operation, writers(SAVED))
    transient = (units.transient[unit] + backward * units.gradients[unit]) * share
    second = np.flatnonzero((graph.block[tasks] != NONE) & (graph.block[tasks] != tasks))
    transient[second] += transient[second - 1]
    return Passing(kept / slices, transient / slices), left / slices


def peak_passing(
    steps: ComputeSteps, physical: PhysicalCosts, layout: Layout, communication: Communication
) -> Passing:
    """Bytes alive at the peak of each rank; offloaded activations leave as late as they may.

    That follows from the order of the passes alone, and from what is offloaded of them: `steps` are
    those of a graph then.
    """
    return peaks_passing(steps, [physical], layout, communication)[0]


def peaks_passing(
    steps: ComputeSteps,
    physicals: Sequence[PhysicalCosts],
    layout: Layout,
    communication: Communication,
) -> list[Passing]:
    """The same by each of some cost models."""
    sizes = np.stack(
        [
            (
                units.saved,
                units.halved,
                units.restored_layer,
                units.transient,
                units.gradients,
                offloaded_bytes(physical, layout),
            )
            for physical in physicals
            for units in [units_alive(physical, layout, communication)]
        ],
        axis=-1,
    )
    ahead = min(communication.offload_ahead, layout.units * layout.microbatches)
    saved, transient = peaks = np.empty((2, layout.pp, len(physicals)))
    find_peaks(
        (
            np.ascontiguousarray(steps.operation, np.int8),
            np.ascontiguousarray(steps.rank, np.int32),
            np.ascontiguousarray(steps.unit, np.int32),
            np.ascontiguousarray(steps.microbatch, np.int32),
            np.ascontiguousarray(steps.block, np.int32),
        ),
        (layout.slices, ahead),
        _of_operations(len(OPERATIONS)),
        (sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]),
        saved,
        transient,
    )
    return [Passing(*each) for each in np.ascontiguousarray(peaks.transpose(2, 0, 1))]


@cache
def _of_operations(number: int) -> Flags:
    """For each operation, whether it is a step of the compute, and which data it begins or ends."""
    codes = np.arange(number)
    of_data = [named(data) for data in (SAVED, HALVED, OFFLOADED) for named in (writers, enders)]
    return np.array([among(codes, chosen) for chosen in (compute_steps(), *of_data)])

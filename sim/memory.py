"""Memory of a device: training state, weights and gradients, activations, workspaces.

The parts are those of the paper's section Memory, with the counts of the
schedule itself in place of its closed forms, and what the operators of a stage
save by the recomputation policy (`sim.activations`). Bytes throughout; `GIGABYTE` is
2^30, which is what the paper's tables use: 16 bytes for each parameter of the
first of 8 x 8 ranks of the 52 B model (838 M) are their 12.49 "GB" then, and
would be 13.4 in powers of ten.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bfpp.schedules import Communication, Layout, Sharding, TaskGraph
from bfpp.schedules.columns import NONE, Flags, Integers, among
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.counts import gradient_buffers, weight_buffers
from bfpp.schedules.operations import (
    HALVED,
    OFFLOADED,
    OPERATIONS,
    SAVED,
    Datum,
    compute_steps,
    enders,
    writers,
)
from bfpp.sim import memory_kernels
from bfpp.sim.activations import UnitActivations, activations_of_units, workspace_bytes
from bfpp.sim.compiling import WORK
from bfpp.sim.offloading import offloaded_bytes
from bfpp.sim.physical import PhysicalCosts, rank_parameters
from bfpp.sim.remembered import of_any_size, once, once_for_stages
from bfpp.traces.memory import GIGABYTE, PARTS
from bfpp.traces.timeline import Timeline

Codes = npt.NDArray[np.integer]
Matrix = npt.NDArray[np.float64]

RESERVED, RESERVED_RANGE = 1.05, (1.03, 1.08)
"""What the allocator reserves, over what is allocated, and the range of published runs on B200."""

CONTEXT, CONTEXT_RANGE = 0.75 * GIGABYTE, (0.5 * GIGABYTE, 1.0 * GIGABYTE)
"""Bytes of a CUDA context and its modules, outside the allocator, and what is assumed of them."""


class PeakMemory(NamedTuple):
    """Bytes on one device of a rank, at its peak.

    `state` is what data-parallel sharding divides, `weights` and `gradients` the
    buffers of training's precision, `saved` what passes keep until their backward
    pass, `transient` what the running part needs in addition, `update` what the
    optimizer's step allocates once activations are freed, `workspace` what
    libraries and communication keep for good.
    """

    state: float
    weights: float
    gradients: float
    saved: float
    transient: float
    update: float
    workspace: float

    @property
    def total(self) -> float:
        """Bytes allocated at the peak: in the backward pass or in the optimizer's step."""
        passing = max(self.saved + self.transient, self.update)
        return self.state + self.weights + self.gradients + passing + self.workspace

    @property
    def reserved(self) -> float:
        """Bytes that the process takes of the device: the allocator's, and the context's."""
        return RESERVED * self.total + CONTEXT

    @property
    def parts_gb(self) -> dict[str, float]:
        """The parts of the total, in its units; zero for those not allocated at the peak."""
        updating = self.update > self.saved + self.transient
        gone = ("saved", "transient") if updating else ("update",)
        return {
            title: 0.0 if name in gone else size / GIGABYTE
            for (name, title), size in zip(PARTS.items(), self, strict=True)
        }

    @property
    def total_gb(self) -> float:
        """The total in units of 2^30 bytes."""
        return self.total / GIGABYTE

    @property
    def reserved_gb(self) -> float:
        """What is reserved, in units of 2^30 bytes."""
        return self.reserved / GIGABYTE

    @property
    def reserved_range_gb(self) -> tuple[float, float]:
        """The least and the most that this may reserve, by the ranges of what is added to it."""
        total, (least, most), (low, high) = self.total, RESERVED_RANGE, CONTEXT_RANGE
        return (least * total + low) / GIGABYTE, (most * total + high) / GIGABYTE

    @property
    def minimum(self) -> PeakMemory:
        """The same over infinitely many data-parallel ranks, as the paper counts it.

        The state is gone, and the rest is as it was.
        """
        return PeakMemory(0.0, *self[1:])


def rank_memory(timeline: Timeline, physical: PhysicalCosts, rank: int) -> PeakMemory:
    """The memory of each device of one pipeline rank."""
    return rank_memories(timeline.graph, physical)[rank]


class Memories(NamedTuple):
    """The memory of each pipeline rank's devices: the parts of `PeakMemory`, as columns."""

    state: Numbers
    weights: Numbers
    gradients: Numbers
    saved: Numbers
    transient: Numbers
    update: Numbers
    workspace: Numbers

    def of(self, rank: int) -> PeakMemory:
        """That of one rank."""
        return PeakMemory(*[part.item(rank) for part in self])

    @property
    def fullest(self) -> PeakMemory:
        """That of the rank that needs most."""
        loop = WORK.loop(memory_kernels, "find_fullest", len(self.state))
        return self.of(loop(*self))


def rank_memories(graph: TaskGraph, physical: PhysicalCosts) -> list[PeakMemory]:
    """The memory of each pipeline rank's devices."""
    memories = memories_of(graph, physical)
    return [memories.of(rank) for rank in range(graph.layout.pp)]


class ComputeSteps(Protocol):
    """Compute steps, those of each rank in its order: a table of them, or a graph's tasks."""

    @property
    def operation(self) -> Codes:
        """What each does."""

    @property
    def rank(self) -> Integers:
        """Where."""

    @property
    def unit(self) -> Integers:
        """Of which unit."""

    @property
    def microbatch(self) -> Integers:
        """For which micro-batch."""

    @property
    def block(self) -> Integers:
        """The number of the first step of its block."""


def memories_of(graph: TaskGraph, physical: PhysicalCosts) -> Memories:
    """The memory of all pipeline ranks; an evaluation saves nothing, and updates nothing."""
    return memories_in_order(
        physical,
        graph.layout,
        graph.communication.sharding,
        peak_passing(graph, physical, graph.layout, graph.communication),
        graph_buffers(graph),
        trains=graph.trains,
    )


def memories_in_order(
    physical: PhysicalCosts,
    layout: Layout,
    sharding: Sharding,
    passing: Passing,
    buffers: Buffers | None,
    *,
    trains: bool = True,
) -> Memories:
    """The memory of all pipeline ranks, by the peaks of their order.

    Where all is sharded, with these buffers; the least that there may be are `one_buffer`.
    """
    state, weights, gradients, update = _parameters(physical, layout, sharding, buffers)
    return Memories(
        state,
        weights,
        gradients,
        *passing,
        update if trains else np.zeros(layout.pp),
        workspace_bytes(physical, layout),
    )


@once_for_stages
def least_memory(
    physical: PhysicalCosts, layout: Layout, sharding: Sharding, offloads: bool = False
) -> PeakMemory:
    """What the fullest rank needs at least, in whichever order it computes."""
    return _least_memories(physical, layout, sharding, offloads=offloads).fullest


def least_memories(physical: PhysicalCosts, layout: Layout, sharding: Sharding) -> list[PeakMemory]:
    """What each pipeline rank needs at least, in whichever order it computes.

    One buffer where units are gathered, and what one micro-batch takes in the unit that takes most:
    before any of its slices runs backward, all of them are saved, if none is offloaded.
    """
    memories = _least_memories(physical, layout, sharding)
    return [memories.of(rank) for rank in range(layout.pp)]


def _least_memories(
    physical: PhysicalCosts, layout: Layout, sharding: Sharding, *, offloads: bool = False
) -> Memories:
    units = activations_of_units(physical, layout)
    transient = units.transient / layout.slices
    unit = (layout.holds * (units.saved + transient)).argmax(axis=1)
    slices = layout.slices if offloads else 1
    passing = Passing(units.saved[unit] / slices, transient[unit])
    return memories_in_order(physical, layout, sharding, passing, one_buffer(layout, sharding))


class Buffers(NamedTuple):
    """For each rank, how many units' weights and gradients are in buffers where all is sharded."""

    weights: tuple[int, ...]
    gradients: tuple[int, ...]


@once
def graph_buffers(graph: TaskGraph) -> Buffers | None:
    """The buffers of a graph, where all is sharded."""
    if graph.communication.sharding is not Sharding.FULL:
        return None
    counts = weight_buffers(graph), gradient_buffers(graph)
    return Buffers(*(tuple(count.tolist()) for count in counts))


def one_buffer(layout: Layout, sharding: Sharding) -> Buffers | None:
    """The least buffers that there may be, where all is sharded."""
    one = (1,) * layout.pp
    return Buffers(one, one) if sharding is Sharding.FULL else None


class Passing(NamedTuple):
    """For each rank, bytes of saved and of transient activations when both need most."""

    saved: Numbers
    transient: Numbers


@of_any_size
@once_for_stages
def _parameters(
    physical: PhysicalCosts, layout: Layout, sharding: Sharding, buffers: Buffers | None
) -> tuple[Numbers, ...]:
    """What parameters need: their state, weights, gradients and update.

    Where they are fully sharded, in these buffers.
    """
    if buffers is None:
        buffers_stages = physical.implementation.buffers_stages
        buffers = Buffers(
            _resident_units(layout, buffers_stages and sharding is Sharding.NONE),
            _resident_units(layout, buffers_stages),
        )
    each = physical.parameter_bytes(sharding)
    weights, quantised, gradients = _in_buffers_of_all(physical, layout, buffers)
    return (
        each.state * _state_parameters(physical, layout, sharding),
        each.weights * weights + physical.quantised_bytes * quantised,
        each.gradients * gradients,
        each.update * rank_parameters(physical, layout),
    )


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
    """How much data has been written and has not ended, each item of this `size`.

    The steps are those of a rank, or of several one after the other: each ends all it writes.
    """
    ends = among(operation, enders(data)) * size
    change = among(operation, writers(data)) * size
    change[1:] -= ends[:-1]
    during: Numbers = np.cumsum(change)
    return _Alive(during, during - ends)


def passing_of_steps(graph: TaskGraph, units: UnitActivations) -> tuple[Passing, Numbers]:
    """Activations during each compute step, and all that it leaves; the steps rank by rank.

    Offloaded activations are included: `bfpp.traces.held` leaves out what is on the host.
    A backward pass restores one layer at a time; what one in two halves holds from the first half
    to the end of the second is saved, but for that layer. The passes of a block are under way at
    once.
    """
    _, tasks = graph.compute_tasks
    unit, operation = graph.unit[tasks], graph.operation[tasks]
    saved = _alive(operation, SAVED, units.saved[unit] * graph.trains)
    halves = _alive(operation, HALVED, units.halved[unit])
    # Rounding may leave a little of what has ended.
    kept = saved.during + np.maximum(halves.during - units.restored_layer[unit], 0.0)
    left = np.maximum(saved.after + halves.after, 0.0)
    transient = units.transient[unit]
    second = np.flatnonzero((graph.block[tasks] != NONE) & (graph.block[tasks] != tasks))
    transient[second] += transient[second - 1]
    slices = graph.layout.slices
    return Passing(kept / slices, transient / slices), left / slices


def peak_passing(
    steps: ComputeSteps, physical: PhysicalCosts, layout: Layout, communication: Communication
) -> Passing:
    """What is alive at the peak of each rank; offloaded activations as late as they may leave.

    That follows from the order of the passes alone, and from what is offloaded of them: `steps` are
    those of a graph then.
    """
    units = activations_of_units(physical, layout)
    ahead = min(communication.offload_ahead, layout.units * layout.microbatches)
    found = Passing(*np.empty((2, layout.pp)))
    operation = steps.operation.astype(np.int32, copy=False)
    WORK.loop(memory_kernels, "find_peaks", len(operation))(
        (operation, steps.rank, steps.unit, steps.microbatch, steps.block),
        (layout.slices, ahead),
        _of_operations(len(OPERATIONS)),
        (
            units.saved,
            units.halved,
            units.restored_layer,
            units.transient,
            offloaded_bytes(physical, layout),
        ),
        *found,
    )
    return found


@cache
def _of_operations(number: int) -> Flags:
    """For each operation, whether it is a step of the compute, and which data it begins or ends."""
    codes = np.arange(number)
    of_data = [named(data) for data in (SAVED, HALVED, OFFLOADED) for named in (writers, enders)]
    return np.array([among(codes, chosen) for chosen in (compute_steps(), *of_data)])


@of_any_size
@once_for_stages
def end_parameters(physical: PhysicalCosts, layout: Layout) -> Numbers:
    """For each unit, the parameters of embeddings and of the output layer."""
    model, ranks = physical.model, physical.tp
    words = model.word_parameters(ranks)
    ends = np.zeros(layout.units)
    ends[0] += model.embedding_parameters(ranks)
    ends[-1] += words * physical.copies_of_words(layout)
    return ends


@of_any_size
@once_for_stages
def _ends_of_ranks(physical: PhysicalCosts, layout: Layout) -> Numbers:
    """The same for each rank."""
    return layout.sums(end_parameters(physical, layout))


@of_any_size
@once_for_stages
def _state_parameters(physical: PhysicalCosts, layout: Layout, sharding: Sharding) -> Numbers:
    """For each rank, how many parameters' state is on a device, after sharding."""
    state = physical.state_parameters(layout, sharding)
    whole = (
        _embedding_on_two_ranks(physical, layout)
        and not physical.implementation.shards_tied_embedding
    )
    if whole:
        unsharded = 1 - physical.state_share(layout, sharding)
        return state + unsharded * _ends_of_ranks(physical, layout)
    return state


@of_any_size
@once_for_stages
def _largest_parameters(physical: PhysicalCosts, layout: Layout) -> Matrix:
    """For each rank and number n of units, the parameters of the layers of the n largest."""
    whole: Numbers = sum(physical.by_stride(layout).values(), np.zeros(()))
    return _largest(layout, whole - end_parameters(physical, layout))


@of_any_size
@once_for_stages
def _largest_quantised(physical: PhysicalCosts, layout: Layout) -> Matrix:
    """The same of parameters that products take quantised."""
    return _largest(layout, physical.quantised_parameters(layout))


def _largest(layout: Layout, of_unit: Numbers) -> Matrix:
    """For each rank and number of its units, the sum over the largest."""
    sums = np.zeros((layout.pp, layout.units + 1))
    sums[:, 1:] = np.sort(layout.holds * of_unit, axis=1)[:, ::-1].cumsum(axis=1)
    return sums


@of_any_size
@once_for_stages
def _embedding_on_two_ranks(physical: PhysicalCosts, layout: Layout) -> bool:
    """Whether the output layer is tied to the embedding, and on another rank.

    The paper's stages count the two as layers: on a looped pipeline with
    several layers a stage, the stage that they add is on rank 0.
    """
    apart = layout.loops == 1 or physical.layers(layout).of_unit.max() == 1
    together = bool(layout.copies) and not layout.ends_are_apart
    return physical.model.tied_embeddings and layout.pp > 1 and apart and not together


def _in_buffers_of_all(
    physical: PhysicalCosts, layout: Layout, buffers: Buffers
) -> tuple[Numbers, Numbers, Numbers]:
    """For each rank, how many parameters have weights, quantised ones, and gradients, at once.

    The embedding's are always in buffers.
    """
    held = _in_buffers(layout, _largest_parameters(physical, layout), *buffers)
    weights, gradients = held + _ends_of_ranks(physical, layout)
    quantised = np.zeros(layout.pp)
    if physical.execution.quantisation is not None:
        [quantised] = _in_buffers(layout, _largest_quantised(physical, layout), buffers.weights)
    return weights, quantised, gradients


def _in_buffers(layout: Layout, largest: Matrix, *buffers: tuple[int, ...]) -> Matrix:
    """For each number of buffers of ranks, and each rank, the parameters in them.

    The largest are in buffers; there may be more buffers than units. Weights that are gathered
    once a step stay for all of it.
    """
    counts, units = np.array(buffers), layout.units_of_ranks
    held: Matrix = largest[np.arange(layout.pp), np.minimum(counts, units)]
    held += np.maximum(counts - units, 0) * largest[:, 1]
    return held


def _resident_units(layout: Layout, buffers_stages: bool) -> tuple[int, ...]:
    """For each rank, how many units are in half precision when nothing is gathered.

    Of a looped rank two, if stages are buffered, and of a rank without others;
    one of a pipeline that does not loop is one stage of the paper's, however
    many units it has here.
    """
    units = layout.units_of_ranks
    is_one_stage = layout.pp > 1 and layout.loops == 1
    resident = units if is_one_stage or not buffers_stages else np.minimum(2, units)
    return tuple(resident.tolist())

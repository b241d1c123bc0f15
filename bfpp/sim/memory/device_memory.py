"""Memory of a device: training state, weights and gradients, activations, workspaces.

Theory of operation. The parts are those of the paper's section Memory, with the counts of the
schedule itself in place of its closed forms, and the bytes that a unit's operators save by the
recomputation policy (`bfpp.sim.costs.units.activations`):

- The total is state + weights + gradients + max(saved + transient, update) + workspace: activations
  are freed before the optimizer's step allocates, so the larger of the two counts.
- State, weights and gradients depend on stages and sharding alone. Fully sharded (DP_FS), weights
  and gradients are those of the largest units that the graph has buffers for at once, and the
  embedding's; otherwise those of the units that stay in training's precision.
- Activations follow from the order of a rank's passes (`bfpp.sim.memory.activations_alive`), not
  from times, so that a search can rule out an order before it is lowered and simulated.
- Reserved memory is what decides whether a step fits: `RESERVED` times the total, for the
  allocator's fragmentation, and a CUDA context.

Bytes throughout; `GIGABYTE` is 2^30, which is what the paper's tables use: 16 bytes for each
parameter of the first of 8 x 8 ranks of the 52 B model (838 M) are their 12.49 "GB" then, and would
be 13.4 in powers of ten.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.schedules import Communication, Layout, Sharding, TaskGraph
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.graph.counts import gradient_buffers, weight_buffers
from bfpp.sim.costs.physical import PhysicalCosts, rank_parameters
from bfpp.sim.costs.units.activations import UnitActivations, workspace_bytes
from bfpp.sim.costs.units.muon import orthogonalising_bytes
from bfpp.sim.engines.caching import of_any_size, once, once_for_stages
from bfpp.sim.memory.activations_alive import Passing, peak_passing
from bfpp.sim.memory.gradients_alive import (
    end_parameters,
    frees_gradients,
    layer_parameters,
    shards_that_come,
    units_alive,
)
from bfpp.sim.memory.peak_memory import Memories, PeakMemory
from bfpp.traces.timeline.timeline import Timeline

Matrix = npt.NDArray[np.float64]


def rank_memory(timeline: Timeline, physical: PhysicalCosts, rank: int) -> PeakMemory:
    """The memory of each device of one pipeline rank."""
    return rank_memories(timeline.graph, physical)[rank]


def rank_memories(graph: TaskGraph, physical: PhysicalCosts) -> list[PeakMemory]:
    """The memory of each pipeline rank's devices."""
    memories = memories_of(graph, physical)
    return [memories.of(rank) for rank in range(graph.layout.pp)]


def memories_of(graph: TaskGraph, physical: PhysicalCosts) -> Memories:
    """The memory of all pipeline ranks; an evaluation saves nothing, and updates nothing."""
    return memories_in_order(
        physical,
        graph.layout,
        graph.communication,
        peak_passing(graph, physical, graph.layout, graph.communication),
        graph_buffers(graph),
        trains=graph.trains,
    )


def memories_in_order(
    physical: PhysicalCosts,
    layout: Layout,
    communication: Communication,
    passing: Passing,
    buffers: Buffers | None,
    *,
    trains: bool = True,
) -> Memories:
    """The memory of all pipeline ranks, by the peaks of their order.

    Where all is sharded, with these buffers; the least that there may be are `one_buffer`.
    """
    parameters = _parameters(physical, layout, communication.sharding, buffers)
    state, weights, gradients, update = parameters
    if frees_gradients(physical, communication):
        state, gradients = state - shards_that_come(physical, layout), np.zeros(layout.pp)
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
    """Least memory of the fullest rank, in any order of its passes."""
    return _least_memories(physical, layout, sharding, offloads=offloads).fullest


def least_memories(physical: PhysicalCosts, layout: Layout, sharding: Sharding) -> list[PeakMemory]:
    """Least memory of each pipeline rank, in any order of its passes.

    One buffer where units are gathered, and what one micro-batch takes in the unit that takes most:
    before any of its slices runs backward, all of them are saved, if none is offloaded.
    """
    memories = _least_memories(physical, layout, sharding)
    return [memories.of(rank) for rank in range(layout.pp)]


def _least_memories(
    physical: PhysicalCosts, layout: Layout, sharding: Sharding, *, offloads: bool = False
) -> Memories:
    communication = Communication(sharding)
    passing = _least_passing(units_alive(physical, layout, communication), layout, offloads)
    return memories_in_order(physical, layout, communication, passing, one_buffer(layout, sharding))


@once_for_stages
def _least_passing(units: UnitActivations, layout: Layout, offloads: bool) -> Passing:
    """Activations of one micro-batch in the unit of each rank that takes most."""
    transient = (units.transient + units.gradients) / layout.slices
    unit = (layout.holds * (units.saved + transient)).argmax(axis=1)
    slices = layout.slices if offloads else 1
    return Passing(units.saved[unit] / slices, transient[unit])


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


@of_any_size
@once_for_stages
def _parameters(
    physical: PhysicalCosts, layout: Layout, sharding: Sharding, buffers: Buffers | None
) -> tuple[Numbers, ...]:
    """Bytes of parameters: their state, weights, gradients and update.

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
        each.state * _state_parameters(physical, layout, sharding)
        - _saved_by_muon(physical, layout, sharding),
        each.weights * weights + physical.quantised_bytes * quantised,
        each.gradients * gradients,
        each.update * rank_parameters(physical, layout) + _for_muon(physical, layout, sharding),
    )


@of_any_size
@once_for_stages
def _saved_by_muon(physical: PhysicalCosts, layout: Layout, sharding: Sharding) -> Numbers:
    """For each rank, bytes of a device's state that Muon does without."""
    kept = physical.kept_of_ranks(physical.matrices_by_stride(layout), layout, sharding)
    return physical.implementation.narrower_matrices * kept


def _for_muon(physical: PhysicalCosts, layout: Layout, sharding: Sharding) -> Numbers:
    """Bytes that Muon allocates while it updates."""
    if not physical.implementation.narrower_matrices:
        return np.zeros(layout.pp)
    return orthogonalising_bytes(physical, layout, sharding)


@of_any_size
@once_for_stages
def _ends_of_ranks(physical: PhysicalCosts, layout: Layout) -> Numbers:
    """Parameters of embeddings and of the output layer, by rank."""
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
    return _largest(layout, layer_parameters(physical, layout))


@of_any_size
@once_for_stages
def _largest_quantised(physical: PhysicalCosts, layout: Layout) -> Matrix:
    """The same of parameters that GEMMs take quantised."""
    return _largest(layout, physical.quantised_parameters(layout))


def _largest(layout: Layout, of_unit: Numbers) -> Matrix:
    """For each rank and number of its units, the sum over the largest."""
    sums = np.zeros((layout.pp, layout.units + 1))
    sums[:, 1:] = np.sort(layout.holds * of_unit, axis=1)[:, ::-1].cumsum(axis=1)
    return sums


@of_any_size
@once_for_stages
def _embedding_on_two_ranks(physical: PhysicalCosts, layout: Layout) -> bool:
    """True if the output layer is tied to the embedding, and on another rank.

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

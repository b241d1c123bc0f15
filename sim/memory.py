"""Memory of a device: training state, weights and gradients, activations, workspaces.

The parts are those of the paper's section Memory, with the counts of the
schedule itself in place of its closed forms, and what the operators of a stage
save by the recomputation policy (`sim.activations`). Bytes throughout; `GIGABYTE` is
2^30, which is what the paper's tables use: 16 bytes for each parameter of the
first of 8 x 8 ranks of the 52 B model (838 M) are their 12.49 "GB" then, and
would be 13.4 in powers of ten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bfpp.schedules import Layout, Sharding, TaskGraph
from bfpp.schedules.columns import NONE, Integers, among
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.operations import HALVED, SAVED, Datum, enders, writers
from bfpp.sim.activations import unit_activations, workspace_bytes
from bfpp.sim.physical import PhysicalCosts, rank_parameters
from bfpp.traces.timeline import Timeline

Codes = npt.NDArray[np.integer]

GIGABYTE = 2**30

PARTS = {
    "state": "training state",
    "weights": "weights",
    "gradients": "gradients",
    "saved": "saved activations",
    "transient": "transient activations",
    "update": "optimizer step",
    "workspace": "workspaces",
}
"""What the parts of a device's memory are called."""

RESERVED = 1.05
"""What the allocator reserves, over what is allocated. Published runs on B200: 1.03 to 1.08."""

CONTEXT = 0.75 * GIGABYTE
"""Bytes of a CUDA context and its modules, beside the allocator. Assumed: 0.5 to 1 GiB."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one device of a rank, at its peak.

    `state` is what data-parallel sharding divides, `weights` and `gradients` the
    buffers of training's precision, `saved` what passes whose backward is due
    keep, `transient` what the part that is being run needs besides, `update`
    what the optimizer's step allocates when activations are gone, `workspace`
    what libraries and communication keep for good.
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
        """What the total is made of, in its units; zero for what is not there at the peak."""
        updating = self.update > self.saved + self.transient
        gone = ("saved", "transient") if updating else ("update",)
        return {
            title: 0.0 if name in gone else getattr(self, name) / GIGABYTE
            for name, title in PARTS.items()
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
    def minimum(self) -> Memory:
        """The same over infinitely many data-parallel ranks, as the paper counts it.

        The state is gone, and the rest is as it was.
        """
        return replace(self, state=0.0)


def rank_memory(timeline: Timeline, physical: PhysicalCosts, rank: int) -> Memory:
    """The memory of each device of one pipeline rank."""
    graph = timeline.graph
    each = physical.parameter_bytes(graph.communication.sharding)
    weights, gradients = _buffered_parameters(graph, physical, rank)
    saved, transient = _peak_passing(timeline, physical, rank)
    parameters = float(rank_parameters(physical, graph.layout)[rank])
    layers = physical.layers(graph.layout)
    return Memory(
        state=each.state * _state_parameters(graph, physical, rank),
        weights=each.weights * weights,
        gradients=each.gradients * gradients,
        saved=saved,
        transient=transient,
        update=each.update * parameters,
        workspace=workspace_bytes(physical, graph.layout, layers, rank),
    )


def least_memory(physical: PhysicalCosts, layout: Layout, sharding: Sharding) -> float:
    """Bytes that no schedule on this layout does without, on any rank.

    The state of a rank's layers, what one stage saves, and what the layer that runs backward
    needs besides.
    """
    layers = physical.layers(layout)
    of_state = physical.parameter_bytes(sharding).state
    parameters = sum(
        physical.state_share(layout, sharding, stride) * layout.sums(each)
        for stride, each in _of_layers(layout, physical).items()
    )
    state = of_state * float(np.min(parameters))
    units = unit_activations(physical, layers)
    return state + float((units.saved + units.transient).min()) / layout.slices


def rank_memories(timeline: Timeline, physical: PhysicalCosts) -> list[Memory]:
    """The memory of each pipeline rank."""
    ranks = range(timeline.graph.layout.pp)
    return [rank_memory(timeline, physical, rank) for rank in ranks]


def passes_alive(timeline: Timeline, rank: int) -> tuple[Numbers, Numbers]:
    """At each of a rank's compute steps, the passes alive and the second halves pending.

    A (stage, micro-batch) pass lives from its forward step to the end of its
    backward pass, in the order of the rank's compute lane; its second half is
    pending from the start of the first.
    """
    operation = timeline.graph.operation[timeline.compute_tasks(rank)]
    each = np.ones(len(operation))
    return _alive(operation, SAVED, each), _alive(operation, HALVED, each)


def _alive(operation: Codes, data: Datum, size: Numbers) -> Numbers:
    """How much has been written by a step and not ended before it, of data of so much each."""
    begun = np.cumsum(among(operation, writers(data)) * size)
    ended = np.cumsum(among(operation, enders(data)) * size)
    alive: Numbers = begun - np.append(0.0, ended[:-1])
    return alive


def _peak_passing(timeline: Timeline, physical: PhysicalCosts, rank: int) -> tuple[float, float]:
    """Bytes of saved and of transient activations when both together need most.

    A backward pass restores one layer at a time; one in two halves holds all that it has
    restored of its stage, from the first half to the end of the second. The passes of a block
    are under way at once.
    """
    graph = timeline.graph
    units = unit_activations(physical, physical.layers(graph.layout))
    tasks = timeline.compute_tasks(rank)
    unit, operation = graph.unit[tasks], graph.operation[tasks]
    saved = _alive(operation, SAVED, units.saved[unit])
    halves = _alive(operation, HALVED, units.restored[unit])
    # What ends may leave a rest of rounding behind.
    transient = np.maximum(halves - units.restored_layer[unit], 0.0) + units.transient[unit]
    second = np.flatnonzero((graph.block[tasks] != NONE) & (graph.block[tasks] != tasks))
    transient[second] += transient[second - 1]
    peak = int(np.argmax(saved + transient))
    slices = graph.layout.slices
    return float(saved[peak]) / slices, float(transient[peak]) / slices


def _of_layers(layout: Layout, physical: PhysicalCosts) -> dict[int, Numbers]:
    """As `by_stride`, the parameters of layers alone."""
    found = physical.by_stride(layout)
    found[physical.tp] = found[physical.tp] - _of_ends(layout, physical)
    return found


def _of_ends(layout: Layout, physical: PhysicalCosts) -> Numbers:
    """For each unit, the parameters of embeddings and of the output layer."""
    model, ranks = physical.model, physical.tp
    words = model.word_parameters(ranks)
    ends = np.zeros(layout.units)
    ends[0] += model.embedding_parameters(ranks)
    ends[-1] += words * physical.copies_of_words(layout)
    return ends


def _split_parameters(layout: Layout, physical: PhysicalCosts, rank: int) -> tuple[Numbers, float]:
    """Parameters of the layers of a rank's units, and of its embedding and output layer."""
    units = layout.units_of(rank)
    of_units: Numbers = sum(_of_layers(layout, physical).values(), np.zeros(()))
    return of_units[units], float(_of_ends(layout, physical)[units].sum())


def _state_parameters(graph: TaskGraph, physical: PhysicalCosts, rank: int) -> float:
    """How many parameters' state is on a device of a rank, after sharding."""
    layout, sharding = graph.layout, graph.communication.sharding
    units = layout.units_of(rank)
    of_layers = sum(
        physical.state_share(layout, sharding, stride) * float(each[units].sum())
        for stride, each in _of_layers(layout, physical).items()
    )
    whole = (
        _embedding_on_two_ranks(layout, physical)
        and not physical.implementation.shards_tied_embedding
    )
    ends = float(_of_ends(layout, physical)[units].sum())
    return of_layers + (1.0 if whole else physical.state_share(layout, sharding)) * ends


def _embedding_on_two_ranks(layout: Layout, physical: PhysicalCosts) -> bool:
    """Whether the output layer is tied to the embedding, and on another rank.

    The paper's stages count the two as layers: on a looped pipeline with
    several layers a stage, the stage that they add comes to lie on rank 0.
    """
    apart = layout.loops == 1 or physical.layers(layout).of_unit.max() == 1
    together = bool(layout.copies) and not layout.ends_are_apart
    return physical.model.tied_embeddings and layout.pp > 1 and apart and not together


def _buffered_parameters(
    graph: TaskGraph, physical: PhysicalCosts, rank: int
) -> tuple[float, float]:
    """How many parameters have half-precision weights, and gradients, at once on a rank.

    The embedding always does; of the layers, those of the stages in buffers.
    Weights that are gathered once a step stay for all of it.
    """
    layout = graph.layout
    of_units, embedding = _split_parameters(layout, physical, rank)
    if graph.communication.sharding is Sharding.FULL:
        tasks = graph.rank == rank
        units = (
            _buffers(graph.weight_buffer[tasks]),
            _buffers(graph.gradient_buffer[tasks]),
        )
    else:
        unsharded = graph.communication.sharding is Sharding.NONE
        buffers_stages = physical.implementation.buffers_stages
        units = (
            _resident_units(layout, rank, buffers_stages and unsharded),
            _resident_units(layout, rank, buffers_stages),
        )
    # The largest are in buffers; there may be more buffers than units.
    largest = np.sort(of_units)[::-1]
    weights, gradients = (
        embedding + float(largest[:count].sum() + max(count - len(largest), 0) * largest[0])
        for count in units
    )
    return weights, gradients


def _buffers(column: Integers) -> int:
    return len(np.unique(column[column != NONE]))


def _resident_units(layout: Layout, rank: int, buffers_stages: bool) -> int:
    """How many of a rank's units are in half precision when nothing is gathered.

    Of a looped rank two, if stages are buffered, and of a rank without others;
    one of a pipeline that does not loop is one stage of the paper's, however
    many units it has here.
    """
    units = len(layout.units_of(rank))
    is_one_stage = layout.pp > 1 and layout.loops == 1
    return units if is_one_stage or not buffers_stages else min(2, units)

"""Memory of a device: training state, half-precision buffers, checkpoints, activations.

The parts are those of the paper's section Memory, with the counts of the
schedule itself in place of its closed forms. Bytes throughout; `GIGABYTE` is
2^30, which is what the paper's tables use: 16 bytes for each parameter of the
first of 8 x 8 ranks of the 52 B model (838 M) are their 12.49 "GB" then, and
would be 13.4 in powers of ten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bfpp.schedules import Layout, Sharding, TaskGraph
from bfpp.schedules.columns import NONE, Flags, Integers, Offsets
from bfpp.schedules.operations import HALVED, SAVED, enders, writers
from bfpp.sim.physical import PhysicalCosts, rank_parameters
from bfpp.traces.timeline import Timeline

GIGABYTE = 2**30

PARTS = {
    "state": "training state",
    "weights": "half-precision weights",
    "gradients": "half-precision gradients",
    "checkpoints": "checkpoints",
    "activations": "activations",
    "update": "optimizer step",
}
"""What the parts of a device's memory are called."""

GRADIENT_TENSORS = 4
"""Gradients of hidden-state size alive while a layer runs backward.

Assumed: of its output and input, of the residual and of a branch; one more, of
the width of the MLP's first product, is divided over N_TP. (Without a pipeline,
the memory in tables E.1 and E.2 grows by S_seq S_mb S_hidden times
18.8 + 69 / N_TP; this gives 18 + 72 / N_TP.)
"""


@dataclass(frozen=True)
class Memory:
    """Bytes on one device of a rank, at its peak.

    `state` is what data-parallel sharding divides, `weights` and `gradients`
    the half-precision buffers, `checkpoints` the inputs of layers whose
    backward pass is due, `activations` those of the layers that are being run,
    with their gradients, `update` what the optimizer's step allocates when
    activations and checkpoints are gone.
    """

    state: float
    weights: float
    gradients: float
    checkpoints: float
    activations: float
    update: float

    @property
    def total(self) -> float:
        """Bytes at the peak: in the backward pass or in the optimizer's step."""
        passing = max(self.checkpoints + self.activations, self.update)
        return self.state + self.weights + self.gradients + passing

    @property
    def parts_gb(self) -> dict[str, float]:
        """What the total is made of, in its units; zero for what is not there at the peak."""
        updating = self.update > self.checkpoints + self.activations
        gone = ("checkpoints", "activations") if updating else ("update",)
        return {
            title: 0.0 if name in gone else getattr(self, name) / GIGABYTE
            for name, title in PARTS.items()
        }

    @property
    def total_gb(self) -> float:
        """The total in units of 2^30 bytes."""
        return self.total / GIGABYTE

    @property
    def minimum(self) -> Memory:
        """The same over infinitely many data-parallel ranks, as the paper counts it.

        The state is gone, and the rest is as it was.
        """
        return replace(self, state=0.0)


def rank_memory(timeline: Timeline, physical: PhysicalCosts, rank: int) -> Memory:
    """The memory of each device of one pipeline rank."""
    graph, implementation = timeline.graph, physical.implementation
    weights, gradients = _buffered_parameters(graph, physical, rank)
    checkpoints, activations = _peak_passing(timeline, physical, rank)
    parameters = float(rank_parameters(physical, graph.layout)[rank])
    return Memory(
        state=implementation.state_bytes * _state_parameters(graph, physical, rank),
        weights=implementation.weight_bytes * weights,
        gradients=implementation.gradient_bytes * gradients,
        checkpoints=checkpoints,
        activations=activations,
        update=implementation.update_bytes * parameters,
    )


def least_memory(physical: PhysicalCosts, layout: Layout, sharding: Sharding) -> float:
    """Bytes that no schedule on this layout does without, on any rank.

    The state of a rank's layers, one stage's checkpoint, and the activations of
    the layer that runs backward.
    """
    model, ranks = physical.model, physical.tp
    layers = physical.layers_per_unit(layout)
    parameters = layers * (layout.units // layout.pp) * model.layer_parameters(ranks)
    state = physical.implementation.state_bytes * physical.state_share(sharding) * parameters
    activations = model.activation_bytes(physical.microbatch_size, ranks)
    return state + layers * _checkpoint(physical) + activations + _layer_gradients(physical)


def rank_memories(timeline: Timeline, physical: PhysicalCosts) -> list[Memory]:
    """The memory of each pipeline rank."""
    ranks = range(timeline.graph.layout.pp)
    return [rank_memory(timeline, physical, rank) for rank in ranks]


def passes_alive(timeline: Timeline, rank: int) -> tuple[Offsets, Offsets]:
    """At each of a rank's compute steps, the passes alive and the second halves pending.

    A (stage, micro-batch) pass lives from its forward step to the end of its
    backward pass, in the order of the rank's compute lane; its second half is
    pending from the start of the first.
    """
    operation = timeline.graph.operation[timeline.compute_tasks(rank)]
    live = _open(np.isin(operation, writers(SAVED)), np.isin(operation, enders(SAVED)))
    halves = _open(np.isin(operation, writers(HALVED)), np.isin(operation, enders(HALVED)))
    return live, halves


def _open(begins: Flags, ends: Flags) -> Offsets:
    """How many have begun by a step and not ended before it."""
    opened: Offsets = np.cumsum(begins) - np.append(0, np.cumsum(ends)[:-1])
    return opened


def _peak_passing(timeline: Timeline, physical: PhysicalCosts, rank: int) -> tuple[float, float]:
    """Bytes of checkpoints and of activations when both together need most.

    A backward pass holds one layer's activations at a time; one in two halves
    holds all of its stage's, from the first half to the end of the second.
    """
    model, ranks = physical.model, physical.tp
    layers = physical.layers_per_unit(timeline.graph.layout)
    stored = model.activation_bytes(physical.microbatch_size, ranks)
    live, pending = passes_alive(timeline, rank)
    checkpoints = live * layers * _checkpoint(physical)
    activations = np.maximum(pending * layers, 1) * stored + _layer_gradients(physical)
    peak = int(np.argmax(checkpoints + activations))
    return float(checkpoints[peak]), float(activations[peak])


def _split_parameters(layout: Layout, physical: PhysicalCosts, rank: int) -> tuple[float, float]:
    """Parameters of the layers of one stage, and of a rank's embedding and output layer."""
    layer = physical.model.layer_parameters(physical.tp)
    of_stage = physical.layers_per_unit(layout) * layer
    all_stages = of_stage * (layout.units // layout.pp)
    return of_stage, float(rank_parameters(physical, layout)[rank]) - all_stages


def _state_parameters(graph: TaskGraph, physical: PhysicalCosts, rank: int) -> float:
    """How many parameters' state is on a device of a rank, after sharding."""
    layout = graph.layout
    of_stage, embedding = _split_parameters(layout, physical, rank)
    share = physical.state_share(graph.communication.sharding)
    whole = (
        _embedding_on_two_ranks(layout, physical)
        and not physical.implementation.shards_tied_embedding
    )
    return share * of_stage * (layout.units // layout.pp) + (1.0 if whole else share) * embedding


def _embedding_on_two_ranks(layout: Layout, physical: PhysicalCosts) -> bool:
    """Whether the output layer is tied to the embedding, and on another rank.

    The paper's stages count the two as layers: on a looped pipeline with
    several layers a stage, the stage that they add comes to lie on rank 0.
    """
    apart = layout.loops == 1 or physical.layers_per_unit(layout) == 1
    return physical.model.tied_embeddings and layout.pp > 1 and apart


def _buffered_parameters(
    graph: TaskGraph, physical: PhysicalCosts, rank: int
) -> tuple[float, float]:
    """How many parameters have half-precision weights, and gradients, at once on a rank.

    The embedding always does; of the layers, those of the stages in buffers.
    Weights that are gathered once a step stay for all of it.
    """
    layout = graph.layout
    of_stage, embedding = _split_parameters(layout, physical, rank)
    if graph.communication.sharding is Sharding.FULL:
        tasks = graph.rank == rank
        stages = (
            _buffers(graph.weight_buffer[tasks]),
            _buffers(graph.gradient_buffer[tasks]),
        )
    else:
        unsharded = graph.communication.sharding is Sharding.NONE
        buffers_stages = physical.implementation.buffers_stages
        stages = (
            _resident_units(layout, buffers_stages and unsharded),
            _resident_units(layout, buffers_stages),
        )
    weights, gradients = (embedding + of_stage * count for count in stages)
    return weights, gradients


def _buffers(column: Integers) -> int:
    return len(np.unique(column[column != NONE]))


def _resident_units(layout: Layout, buffers_stages: bool) -> int:
    """How many of a rank's stages are in half precision when nothing is gathered.

    Of a looped rank two, if stages are buffered, and of a rank without others;
    one of a pipeline that does not loop is one stage of the paper's, however
    finely it is divided here.
    """
    is_one_stage = layout.pp > 1 and layout.loops == 1
    if not buffers_stages or is_one_stage:
        return layout.units // layout.pp
    return min(2, (layout.units // layout.pp))


def _checkpoint(physical: PhysicalCosts) -> float:
    """Bytes of one layer's checkpoint on a device.

    The paper's M_ckpt divides it over N_TP; its measurements do not (52 B
    model, GPipe: 1.02 GB more for every 8 micro-batches and 8 layers).
    """
    return physical.model.checkpoint_bytes(physical.microbatch_size, tp=1)


def _layer_gradients(physical: PhysicalCosts) -> float:
    """Bytes of the gradients of one layer's activations in its backward pass."""
    model, ranks = physical.model, physical.tp
    widths = GRADIENT_TENSORS + model.expansion / ranks
    return widths * model.hidden_bytes(physical.microbatch_size)

"""Seconds of compute: matrix products at a share of the peak, the rest at memory speed.

Each part of the model has its work for one forward pass of one micro-batch on
one device. A backward pass repeats the forward pass where activations are
checkpointed, then takes twice its matrix products: once for the gradient of
the input, once for that of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from schedules.columns import Seconds
from sim.cluster import Cluster
from sim.collectives import all_reduce_seconds
from sim.model import Transformer

ACTIVATION_PASSES = 2.0
"""How often a forward pass moves a layer's activations through memory.

Assumed: each is written once and read once; a backward pass also moves their
gradients, so twice as much.
"""

LOGIT_BYTES = 16.0
"""Bytes moved for each logit by the loss's forward pass.

Assumed: written and read in half precision (4), then in full (8), and its exponential written (4).
"""

EMBEDDING_PASSES = 4.0
"""How often the embedding moves the hidden state. Assumed: read, summed, normed, dropped out."""


class Shape(Protocol):
    """What a configuration must say for its compute to be timed."""

    @property
    def model(self) -> Transformer:
        """What is trained."""
        ...

    @property
    def cluster(self) -> Cluster:
        """Where it is trained."""
        ...

    @property
    def tensor_parallel(self) -> int:
        """Devices that share a layer (N_TP)."""
        ...

    @property
    def microbatch_size(self) -> int:
        """Samples in a micro-batch (S_mb)."""
        ...


@dataclass(frozen=True)
class Work:
    """Seconds of one forward pass: matrix products, memory traffic, exposed all-reduces."""

    matmul: float
    elementwise: float
    all_reduce: float
    checkpointed: bool

    @property
    def forward(self) -> float:
        """Seconds of the forward pass."""
        return self.matmul + self.elementwise + self.all_reduce

    @property
    def backward_input(self) -> float:
        """Seconds to recompute the forward pass, if need be, and to get the input's gradient.

        The backward pass's own all-reduces are overlapped, so that 2/3 of all
        are exposed (paper, section Tensor-parallel, footnote).
        """
        recomputed = self.forward if self.checkpointed else 0.0
        return recomputed + self.matmul + 2 * self.elementwise

    @property
    def backward_weight(self) -> float:
        """Seconds to get the gradient of the weights."""
        return self.matmul


@dataclass(frozen=True, eq=False)
class StageSeconds:
    """Seconds of each stage's passes, as columns over stages."""

    forward: Seconds
    backward_input: Seconds
    backward_weight: Seconds


def layer_work(shape: Shape) -> Work:
    """One transformer layer: its products, its activations, and two all-reduces."""
    model, ranks = shape.model, shape.tensor_parallel
    activations = model.activation_bytes(shape.microbatch_size, ranks)
    return Work(
        _matmul_seconds(shape, model.layer_flops(shape.microbatch_size)),
        ACTIVATION_PASSES * activations / shape.cluster.device.memory_bandwidth,
        2 * _hidden_all_reduce_seconds(shape),
        checkpointed=True,
    )


def embedding_work(shape: Shape) -> Work:
    """The embedding: memory traffic, and the sum of the shares of the vocabulary."""
    moved = EMBEDDING_PASSES * shape.model.hidden_bytes(shape.microbatch_size)
    return Work(
        0.0,
        moved / shape.cluster.device.memory_bandwidth,
        _hidden_all_reduce_seconds(shape),
        checkpointed=False,
    )


def output_work(shape: Shape) -> Work:
    """The output layer and the loss, on the padded vocabulary."""
    model, ranks = shape.model, shape.tensor_parallel
    words = model.padded_vocabulary(ranks)
    logits = model.sequence * shape.microbatch_size * words / ranks
    return Work(
        _matmul_seconds(shape, model.output_flops(shape.microbatch_size, words)),
        LOGIT_BYTES * logits / shape.cluster.device.memory_bandwidth,
        0.0,
        checkpointed=False,
    )


def stage_seconds(shape: Shape, stages: int, layers_per_stage: int) -> StageSeconds:
    """Seconds of each stage; the embedding is on the first, the output layer on the last."""
    parts = (
        (layer_work(shape), np.full(stages, layers_per_stage)),
        (embedding_work(shape), np.arange(stages) == 0),
        (output_work(shape), np.arange(stages) == stages - 1),
    )
    return StageSeconds(
        *(
            np.sum([getattr(work, name) * count for work, count in parts], axis=0)
            for name in ("forward", "backward_input", "backward_weight")
        )
    )


def _matmul_seconds(shape: Shape, flops: float) -> float:
    device = shape.cluster.device
    return flops / (shape.tensor_parallel * device.peak * device.matmul_efficiency)


def _hidden_all_reduce_seconds(shape: Shape) -> float:
    size = shape.model.hidden_bytes(shape.microbatch_size)
    return all_reduce_seconds(size, shape.tensor_parallel, shape.cluster.intra_node)

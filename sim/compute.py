"""Seconds of compute, from the kernels of each part of the model.

Each part has its work for one forward pass of one micro-batch on one device. A
backward pass repeats the forward pass where activations are checkpointed, then
takes two products for each of its matrix products: one for the gradient of the
input, one for that of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import Protocol

import numpy as np

from bfpp.schedules.columns import Seconds
from bfpp.sim.cluster import Cluster
from bfpp.sim.collectives import all_reduce_seconds
from bfpp.sim.efficiency import Product, product_seconds, traffic_seconds
from bfpp.sim.implementation import Implementation
from bfpp.sim.model import Transformer

ACTIVATION_PASSES = 2.0
"""How often a forward pass moves a layer's activations through memory.

Assumed: each is written once and read once; a backward pass also moves their
gradients, so twice as much.
"""

LAYER_KERNELS = 20
"""Kernels of a layer's forward pass besides its products. Assumed: norms, biases, softmax, ..."""

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
    def tp(self) -> int:
        """Devices that share a layer (N_TP)."""
        ...

    @property
    def microbatch_size(self) -> int:
        """Samples in a micro-batch (S_mb)."""
        ...

    @property
    def implementation(self) -> Implementation:
        """Whose code runs."""
        ...


@dataclass(frozen=True)
class Work:
    """Seconds of the parts of one forward pass, and of its backward products.

    `accumulation` adds one micro-batch's gradients to those before.
    """

    products: float
    input_products: float
    weight_products: float
    elementwise: float
    all_reduce: float
    accumulation: float
    checkpointed: bool

    @property
    def forward(self) -> float:
        """Seconds of the forward pass."""
        return self.products + self.elementwise + self.all_reduce

    @property
    def backward_input(self) -> float:
        """Seconds to recompute the forward pass, if need be, and to get the input's gradient.

        The backward pass's own all-reduces are overlapped, so that 2/3 of all
        are exposed (paper, section Tensor-parallel, footnote).
        """
        recomputed = self.forward if self.checkpointed else 0.0
        return recomputed + self.input_products + 2 * self.elementwise

    @property
    def backward_weight(self) -> float:
        """Seconds to get the gradient of the weights, and to add it to those before."""
        return self.weight_products + self.accumulation


@dataclass(frozen=True, eq=False)
class UnitSeconds:
    """Seconds of each stage's passes, as columns over stages."""

    forward: Seconds
    backward_input: Seconds
    backward_weight: Seconds


def layer_products(model: Transformer, microbatch_size: int, ranks: int) -> tuple[Product, ...]:
    """The matrix products of a layer's forward pass on one device."""
    tokens, hidden = model.sequence * microbatch_size, model.hidden
    head, heads = hidden // model.heads, model.heads // ranks * microbatch_size
    mlp, expanded = (round(ratio * hidden) for ratio in (model.mlp_ratio, model.expansion))
    queries_keys_values = round(hidden * (1 + 2 * model.kv_ratio)) // ranks
    return (
        Product(tokens, queries_keys_values, hidden),
        Product(model.sequence, model.sequence, head, heads),
        Product(model.sequence, head, model.sequence, heads),
        Product(tokens, hidden, hidden // ranks),
        Product(tokens, expanded // ranks, hidden),
        Product(tokens, hidden, mlp // ranks),
    )


def layer_work(shape: Shape) -> Work:
    """One transformer layer: its products, its activations, and two all-reduces."""
    model, ranks, device = shape.model, shape.tp, shape.cluster.device
    activations = model.activation_bytes(shape.microbatch_size, ranks)
    return Work(
        **_product_seconds(shape, layer_products(model, shape.microbatch_size, ranks)),
        elementwise=traffic_seconds(device, ACTIVATION_PASSES * activations, LAYER_KERNELS),
        all_reduce=2 * hidden_all_reduce_seconds(shape),
        accumulation=_accumulation_seconds(shape, model.layer_parameters(ranks)),
        checkpointed=True,
    )


def embedding_work(shape: Shape) -> Work:
    """The embedding: memory traffic, and the sum of the shares of the vocabulary."""
    moved = EMBEDDING_PASSES * shape.model.hidden_bytes(shape.microbatch_size)
    return Work(
        **_product_seconds(shape, ()),
        elementwise=traffic_seconds(shape.cluster.device, moved),
        all_reduce=hidden_all_reduce_seconds(shape),
        accumulation=0.0,
        checkpointed=False,
    )


def output_work(shape: Shape) -> Work:
    """The layers before the output layer, the output layer and the loss."""
    model, ranks, device = shape.model, shape.tp, shape.cluster.device
    tokens = model.sequence * shape.microbatch_size
    words = model.padded_vocabulary(ranks) // ranks
    heads = (Product(tokens, model.hidden, model.hidden),) * model.head_layers
    return Work(
        **_product_seconds(shape, (*heads, Product(tokens, words, model.hidden))),
        elementwise=traffic_seconds(device, LOGIT_BYTES * tokens * words),
        all_reduce=0.0,
        accumulation=_accumulation_seconds(shape, model.word_parameters(ranks)),
        checkpointed=False,
    )


def unit_seconds(shape: Shape, stages: int, layers_per_stage: int) -> UnitSeconds:
    """Seconds of each stage; the embedding is on the first, the output layer on the last."""
    parts = (
        (layer_work(shape), np.full(stages, layers_per_stage)),
        (embedding_work(shape), np.arange(stages) == 0),
        (output_work(shape), np.arange(stages) == stages - 1),
    )
    return UnitSeconds(
        *(
            np.sum([getattr(work, name) * count for work, count in parts], axis=0)
            for name in ("forward", "backward_input", "backward_weight")
        )
    )


def hidden_all_reduce_seconds(shape: Shape) -> float:
    """Seconds to sum the hidden state over the tensor-parallel group.

    It waits until the last device has come, and of more devices one comes
    later: the latest of n falls behind about as the logarithm of n.
    """
    ranks = shape.tp
    if ranks == 1:
        return 0.0
    size = shape.model.hidden_bytes(shape.microbatch_size)
    link = shape.cluster.group_link(ranks)
    return all_reduce_seconds(size, ranks, link) + log2(ranks) * link.synchronisation


def _product_seconds(shape: Shape, products: tuple[Product, ...]) -> dict[str, float]:
    """Seconds of the products, and of those for the gradients of their inputs and weights."""
    device = shape.cluster.device
    return {
        "products": sum(product_seconds(device, each) for each in products),
        "input_products": sum(product_seconds(device, each.of_input) for each in products),
        "weight_products": sum(product_seconds(device, each.of_weight) for each in products),
    }


def _accumulation_seconds(shape: Shape, parameters: float) -> float:
    traffic = shape.implementation.accumulation_traffic * parameters
    return traffic_seconds(shape.cluster.device, traffic)

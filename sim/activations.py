"""Bytes of activations: what each unit saves for its backward pass, and what comes and goes.

- A pass that is in flight keeps what its unit's parts save.
- While a part runs backward, what it recomputes is there too, with the gradients of its
  activations. Parts run one after the other, so the largest counts.
- The head has its logits besides what it saves, or a weight's gradient before it is added.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bfpp.schedules import Layout
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.sim.checkpointing import Checkpointed
from bfpp.sim.compute import Layers, Shape, part_counts, parts

TRANSFER_BUFFERS = 2
"""Hidden states that a pipeline's rank keeps for transfers: one to send, one to receive."""


@dataclass(frozen=True, eq=False)
class UnitActivations:
    """Bytes on a device, as columns over units.

    `saved` of each micro-batch in flight, `restored` what recomputation adds to it for the
    whole unit, of which `restored_layer` is one layer's; `transient` is what the unit's most
    demanding part needs besides while it runs backward.
    """

    saved: Numbers
    restored: Numbers
    transient: Numbers
    restored_layer: float


def unit_activations(shape: Shape, layers: Layers) -> UnitActivations:
    """The activations of each unit; the embedding is in the first, the head in the last."""
    counts = part_counts(shape, layers)
    saved, restored = np.zeros((2, len(layers.of_unit)))
    for part, count in counts:
        saved += part.saved_bytes * count
        restored += part.restored_bytes * count
    layer = max(part.restored_bytes for part, count in counts if count.any())
    transient = np.full(len(saved), layer + layer_gradients(shape))
    # What the head saves is gone when the layers before it run backward.
    transient[-1] = max(transient[-1] - parts(shape).head.saved_bytes, head_transient(shape))
    return UnitActivations(saved, restored, transient, layer)


def layer_gradients(shape: Shape) -> float:
    """Bytes of the gradients of a layer's activations, and of an input that is gathered for it."""
    execution = shape.execution
    hidden = execution.own("hidden", execution.model.hidden).bytes
    expanded = execution.divided("expanded", execution.model.expanded_width).bytes
    gathered = execution.hidden_bytes if execution.sequence_parallel else 0.0
    return shape.implementation.hidden_gradients * hidden + expanded + gathered


def head_transient(shape: Shape) -> float:
    """Bytes that come and go with the head: its input's gradient, and what the loss writes.

    With sequence parallelism the input and its gradient are whole; a loss that is not fused
    has logits in both precisions beside what it keeps.
    """
    execution, implementation = shape.execution, shape.implementation
    words = execution.model.padded_vocabulary(execution.tp)
    states = 3 if execution.sequence_parallel else 1
    size = states * execution.hidden_bytes
    if implementation.dummy_gradients:
        size += execution.number * execution.model.word_parameters(execution.tp)
    if not execution.fused:
        logits = execution.divided("logits", words).bytes
        size += logits * (1 + execution.statistic / execution.number)
    return size


def workspace_bytes(shape: Shape, layout: Layout) -> float:
    """Bytes that are there for good: of libraries, of communication, and of dummy gradients."""
    execution, implementation = shape.execution, shape.implementation
    size = implementation.workspace_bytes
    if layout.pp > 1:
        size += TRANSFER_BUFFERS * execution.own("hidden", execution.model.hidden).bytes
    if execution.sequence_parallel:
        size += execution.hidden_bytes
    if implementation.dummy_gradients:
        size += execution.number * sum(_weight_shapes(parts(shape).kept_layer))
    return size


def _weight_shapes(layer: Checkpointed) -> list[float]:
    """How many numbers a weight has, of each shape once."""
    products = [each.forward.products for each in layer.operators if each.backward_weight.products]
    shapes = {(product.columns, product.depth) for some in products for product in some}
    return [columns * depth for columns, depth in shapes]

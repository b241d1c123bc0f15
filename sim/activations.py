"""Bytes of activations: what each unit saves for its backward pass, and what comes and goes.

- A pass that is in flight keeps what its unit's parts save.
- Between the halves of a backward pass, it also keeps what it has recomputed; or, as eager PyTorch
  does, the gradients that those of weights are made of, and recomputes again. (Other software
  frees what the second half does not need, which is about as much as these gradients.)
- While a part runs backward, what it recomputes is allocated too, with the gradients of its
  activations. Parts run one after the other, so the largest counts.
- In addition to what it saves, the head has its logits, or a weight's gradient before it is added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bfpp.schedules import Layout
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.recomputation import NO_RECOMPUTATION
from bfpp.sim.checkpointing import Checkpointed
from bfpp.sim.compute import ComputeSettings, LayerParts, parts, recomputes_units
from bfpp.sim.experts import expert_rows
from bfpp.sim.operators import Execution
from bfpp.sim.remembered import once, once_for_stages
from bfpp.sim.unit_layers import Layers, Matrix

if TYPE_CHECKING:
    from bfpp.sim.physical import PhysicalCosts

TRANSFER_BUFFERS = 2
"""Hidden states that a pipeline's rank keeps for transfers: one to send, one to receive."""


@dataclass(frozen=True, eq=False)
class UnitActivations:
    """Bytes on a device, as columns over units.

    `saved` by each micro-batch in flight, and `halved` what it holds in addition between the two
    halves of its backward pass; `transient` is what the unit's most demanding part needs in
    addition while it runs backward. `restored_layer` is the share of `transient` that `halved`
    counts too.
    """

    saved: Numbers
    halved: Numbers
    transient: Numbers
    restored_layer: Numbers


@once_for_stages
def activations_of_units(physical: PhysicalCosts, layout: Layout) -> UnitActivations:
    """The activations of each unit of a micro-batch."""
    if not recomputes_units(physical):
        return unit_activations(physical, physical.layers(layout))
    kept = replace(physical, recompute=NO_RECOMPUTATION)
    execution = physical.execution
    inputs = np.full(layout.units, execution.own("hidden", execution.model.hidden).bytes)
    inputs[0] = 0.0  # of tokens
    return inputs_alone(unit_activations(kept, kept.layers(layout)), inputs)


def inputs_alone(kept: UnitActivations, inputs: Numbers) -> UnitActivations:
    """Those of units that keep their `inputs` alone, and restore all else at once."""
    restored = kept.saved - inputs
    return UnitActivations(inputs, restored + kept.halved, restored + kept.transient, restored)


def unit_activations(shape: ComputeSettings, layers: Layers) -> UnitActivations:
    """The activations of each unit; the embedding is in the first, the head in the last."""
    saved, restored, waiting = _part_bytes(shape) @ layers.part_counts
    of_layer, gradients = _layer_bytes(shape)
    of_kinds = np.where(layers.recomputed_of_kind > 0, of_layer, 0.0)
    transient = np.where(layers.of_kind > 0, of_kinds + gradients, 0.0).max(axis=0)
    # What the head saves is gone when the layers before it run backward.
    transient[-1] = max(transient[-1] - parts(shape).head.saved_bytes, head_transient(shape))
    if shape.execution.eager:
        result = shape.execution.own("hidden", shape.execution.model.hidden).bytes
        waiting[:-1] -= np.minimum(waiting[:-1], result)  # its gradient stays where it was received
        return UnitActivations(saved, waiting, transient, np.zeros_like(saved))
    return UnitActivations(saved, restored, transient, np.minimum(of_kinds.max(axis=0), transient))


@once
def _part_bytes(shape: ComputeSettings) -> Matrix:
    """For each part, the bytes that it saves, that recomputation adds, and that halves do."""
    each = parts(shape).each
    return np.array([(it.saved_bytes, it.restored_bytes, it.waiting_bytes) for it in each]).T


@once
def _layer_bytes(shape: ComputeSettings) -> tuple[Matrix, Matrix]:
    """For each kind of layer, what recomputation adds in one, and the gradients in one."""
    restored = [layer.recomputed.restored_bytes for _, layer in _kinds(shape)]
    gradients = [
        layer_gradients(kind, shape.implementation.hidden_gradients) for kind, _ in _kinds(shape)
    ]
    return np.array([restored]).T, np.array([gradients]).T


@once
def _kinds(shape: ComputeSettings) -> list[tuple[Execution, LayerParts]]:
    """Each kind of layer, as if the model had no others."""
    model = shape.execution.model
    kinds = (replace(shape.execution, model=kind) for kind in model.kinds)
    return list(zip(kinds, parts(shape).layers, strict=True))


def layer_gradients(execution: Execution, hidden_gradients: float) -> float:
    """Bytes of the gradients of a layer's activations, and of an input that is gathered for it.

    Of experts, those of the rows that come and of what is made of them.
    """
    model = execution.model
    if model.experts is not None:
        return 2 * execution.number * expert_rows(execution, model.experts) * model.hidden
    hidden = execution.own("hidden", model.hidden).bytes
    expanded = execution.divided("expanded", model.expanded_width).bytes
    gathered = execution.hidden_bytes if execution.sequence_parallel else 0.0
    return hidden_gradients * hidden + expanded + gathered


@once
def head_transient(shape: ComputeSettings) -> float:
    """Bytes that come and go with the head: its input's gradient, and what the loss writes.

    With sequence parallelism the input and its gradient are whole; a loss that is not fused
    has logits in both precisions in addition to what it keeps.
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


def workspace_bytes(shape: ComputeSettings, layout: Layout, layers: Layers) -> Numbers:
    """Bytes that each rank has for good: of libraries, communication, and dummy gradients."""
    present = [tuple(rank) for rank in (layout.holds @ layers.of_kind.T > 0).tolist()]
    size = {each: _workspace_bytes(shape, layout.pp, each) for each in {*present}}
    return np.array([size[each] for each in present])


@once
def _workspace_bytes(shape: ComputeSettings, ranks: int, present: tuple[bool, ...]) -> float:
    """Those of a rank that has layers of some kinds."""
    execution, implementation = shape.execution, shape.implementation
    kinds = [each for each, there in zip(_kinds(shape), present, strict=True) if there]
    size = implementation.workspace_bytes
    if any(kind.model.experts for kind, _ in kinds):
        size += implementation.experts_workspace_bytes
    if ranks > 1:
        size += TRANSFER_BUFFERS * execution.own("hidden", execution.model.hidden).bytes
    if execution.sequence_parallel:
        size += execution.hidden_bytes
    if implementation.dummy_gradients:
        shapes = {shape for _, part in kinds for shape in _weight_shapes(part.kept)}
        size += execution.number * sum(columns * depth for columns, depth in shapes)
    return size


def _weight_shapes(layer: Checkpointed) -> set[tuple[int, int]]:
    """Each shape that a weight has."""
    products = [each.forward.products for each in layer.operators if each.backward_weight.products]
    return {(product.columns, product.depth) for some in products for product in some}

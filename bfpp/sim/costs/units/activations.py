"""Bytes of activations: each unit's saved for its backward pass, and transient ones.

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

import numpy as np

from bfpp.schedules import Layout
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.settings.recomputation import NO_RECOMPUTATION
from bfpp.sim.costs.units.seconds import LayerParts, parts, recomputes_units
from bfpp.sim.costs.units.settings import ComputeSettings, Setting, UnitSettings
from bfpp.sim.engines.caching import of_any_size, once, once_for_stages
from bfpp.sim.models.unit_layers import Layers, Matrix
from bfpp.sim.operators.checkpointing import Checkpointed
from bfpp.sim.operators.experts import expert_rows
from bfpp.sim.operators.operators import Execution

TRANSFER_BUFFERS = 2
"""Hidden states that a pipeline's rank keeps for transfers: one to send, one to receive."""


@dataclass(frozen=True, eq=False)
class UnitActivations:
    """Bytes on a device, as columns over units.

    `saved` by each micro-batch in flight, and `halved` what it holds in addition between the two
    halves of its backward pass; `transient` is what the unit's most demanding part needs in
    addition while it runs backward, and `of_layers` the same without the head. Where gradients of
    weights come and go, backward passes have `gradients`, too. `restored_layer` is the share of
    `transient` that `halved` counts too.
    """

    saved: Numbers
    halved: Numbers
    transient: Numbers
    of_layers: Numbers
    gradients: Numbers
    restored_layer: Numbers


def activations_of_units(shape: UnitSettings, layout: Layout) -> UnitActivations:
    """The activations of each unit of a micro-batch."""
    return _activations(shape.setting, shape.layers(layout))


@once
def _activations(setting: Setting, layers: Layers) -> UnitActivations:
    if not recomputes_units(setting):
        return unit_activations(setting, layers)
    kept = replace(setting, recomputation=NO_RECOMPUTATION)
    execution = setting.execution
    inputs = np.full(len(layers.of_unit), execution.own("hidden", execution.model.hidden).bytes)
    inputs[0] = 0.0  # of tokens
    return inputs_alone(unit_activations(kept, layers.kept), inputs)


def inputs_alone(kept: UnitActivations, inputs: Numbers) -> UnitActivations:
    """Activations of units that save their `inputs` alone, and recompute all else at once."""
    restored = kept.saved - inputs
    return UnitActivations(
        inputs,
        restored + kept.halved,
        restored + kept.transient,
        restored + kept.of_layers,
        kept.gradients,
        restored,
    )


def unit_activations(shape: ComputeSettings, layers: Layers) -> UnitActivations:
    """The activations of each unit; the embedding is in the first, the head in the last."""
    setting = shape.setting
    saved, restored, waiting = _part_bytes(setting) @ layers.part_counts
    of_layer, gradients = _layer_bytes(setting)
    of_kinds = np.where(layers.recomputed_of_kind > 0, of_layer, 0.0)
    own = np.where(layers.of_kind > 0, of_kinds + gradients, 0.0).max(axis=0)
    # What the head saves is gone when the layers before it run backward.
    own[-1] -= parts(setting).head.saved_bytes
    transient = own.copy()
    transient[-1] = max(own[-1], head_transient(setting))
    none = np.zeros_like(saved)
    if shape.execution.eager:
        result = shape.execution.own("hidden", shape.execution.model.hidden).bytes
        waiting[:-1] -= np.minimum(waiting[:-1], result)  # its gradient stays where it was received
        return UnitActivations(saved, waiting, transient, own, none, none)
    restored_layer = np.minimum(of_kinds.max(axis=0), transient)
    return UnitActivations(saved, restored, transient, own, none, restored_layer)


@once
def _part_bytes(setting: Setting) -> Matrix:
    """For each part, the bytes that it saves, that recomputation adds, and that halves do."""
    each = parts(setting).each
    return np.array([(it.saved_bytes, it.restored_bytes, it.waiting_bytes) for it in each]).T


@once
def _layer_bytes(setting: Setting) -> tuple[Matrix, Matrix]:
    """For each kind of layer, bytes that recomputation adds in one, and gradients in one."""
    restored = [layer.recomputed.restored_bytes for _, layer in _kinds(setting)]
    gradients = [
        layer_gradients(kind, setting.implementation.hidden_gradients)
        for kind, _ in _kinds(setting)
    ]
    return np.array([restored]).T, np.array([gradients]).T


@once
def _kinds(setting: Setting) -> list[tuple[Execution, LayerParts]]:
    """Each kind of layer, as if the model had no others."""
    model = setting.execution.model
    kinds = (replace(setting.execution, model=kind) for kind in model.kinds)
    return list(zip(kinds, parts(setting).layers, strict=True))


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
def head_transient(setting: Setting) -> float:
    """Transient bytes of the head: its input's gradient, and the loss's outputs.

    With sequence parallelism the input and its gradient are whole. A loss that is not fused has
    logits in both precisions in addition to what it keeps; PyTorch's own has gradients of logits in
    full precision, and the logits themselves are gone.
    """
    execution, implementation = setting.execution, setting.implementation
    words = execution.model.padded_vocabulary(execution.tp)
    states = 3 if execution.sequence_parallel else 1
    size = states * execution.hidden_bytes
    if implementation.dummy_gradients:
        size += execution.number * execution.model.word_parameters(execution.tp)
    if not execution.fused:
        logits = execution.divided("logits", words).bytes
        in_full = execution.statistic / execution.number
        if implementation.pytorch_loss:
            # Gradients of the loss's two halves; where words are divided, also exponentials.
            copies = (2 if execution.tp == 1 else 3) * in_full
        else:
            copies = 1 + in_full
        size += copies * logits
    return size


@once_for_stages
def workspace_bytes(shape: UnitSettings, layout: Layout) -> Numbers:
    """Bytes that each rank has for good: of libraries, communication, and dummy gradients."""
    present = _present(shape, layout)
    size = {each: _workspace_bytes(shape.setting, layout.pp, each) for each in {*present}}
    return np.array([size[each] for each in present])


@of_any_size
@once_for_stages
def _present(shape: UnitSettings, layout: Layout) -> list[tuple[bool, ...]]:
    """For each rank, whether it has layers of each kind."""
    has = layout.holds @ shape.layers(layout).of_kind.T > 0
    return [tuple(rank) for rank in has.tolist()]


@once
def _workspace_bytes(setting: Setting, ranks: int, present: tuple[bool, ...]) -> float:
    """Workspace of a rank that has layers of some kinds."""
    execution, implementation = setting.execution, setting.implementation
    kinds = [each for each, there in zip(_kinds(setting), present, strict=True) if there]
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
    """Shapes of a layer's weights."""
    products = [each.forward.products for each in layer.operators if each.backward_weight.products]
    return {(product.columns, product.depth) for some in products for product in some}

"""The names that weights of a model have where torch.distributed.checkpoint stored them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING

from torch import Tensor, nn

from bfpp.executor.model.buffers import Moving
from bfpp.executor.model.model import Model

if TYPE_CHECKING:
    from bfpp.executor.checkpoint.state_dicts import TensorNames


def stored_tensors(
    model: Model, layers: Mapping[int, nn.Module], shared: Mapping[str, str]
) -> dict[TensorNames, Tensor]:
    """Parameters and buffers of layers; the `shared` ones may be stored by either name."""
    tensors: dict[TensorNames, Tensor] = {}
    for number, layer in layers.items():
        for name, tensor in chain(layer.named_parameters(), layer.named_buffers()):
            names = dict.fromkeys([f"{number}.{name}", shared.get(f"{number}.{name}", "")])
            tensors[tuple(model.own_name(each) for each in names if each)] = tensor
    return tensors


def require_stored(
    model: Model, layers: Mapping[int, nn.Module], shared: Mapping[str, str], moving: Moving
) -> None:
    """Raise `InvalidConfiguration` unless a model's `weights` are those of its layers.

    Parameters must be there, and buffers that passes change; constants may be.
    """
    assert model.weights is not None  # noqa: S101
    due, known = set[str](), {*model.constants}
    for number, layer in layers.items():
        state, changed = {*layer.state_dict()}, {*moving.get(number, ())}
        needs = state - (dict(layer.named_buffers()).keys() - changed)
        due |= {model.own_name(f"{number}.{name}") for name in needs}
        known |= {model.own_name(f"{number}.{name}") for name in state | changed}
    tensors = stored_tensors(model, layers, shared)
    needed = {names: tensor for names, tensor in tensors.items() if names[0] in due}
    others = {names: tensor for names, tensor in tensors.items() if names[0] not in due}
    model.weights.require(needed, others, known)

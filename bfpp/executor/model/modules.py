"""Your own network as layers: the parts that it calls one after another, by their names.

Names are those of torchtitan's stages: `tok_embeddings`, `layers.0`, `norm`. A part is a child of
the network; where that is a Sequential, a ModuleList or a ModuleDict, each module in it.

The network is called once on the shapes of a sample, to see in which order it calls its parts. It
may do no more than call them: each takes what the one before returned, and the last one's result
is the network's. What else a part is given may be constants and buffers of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from bfpp.executor.devices.messages import Tree, in_precision
from bfpp.executor.devices.uncompiled import uncompiled
from bfpp.executor.model.user_errors import line_here, reason_of
from bfpp.schedules import InvalidConfiguration

LISTS = (nn.ModuleList, nn.ModuleDict)
META = torch.device("meta")


@dataclass(frozen=True)
class Call:
    """One call of a part, at a line of the network: its inputs and its outputs."""

    name: str
    given: tuple[Any, ...]
    further: Mapping[str, Any]
    result: Any
    line: str


@dataclass(frozen=True)
class BufferName:
    """Stands for the buffer of this name."""

    name: str


PART = "part"
"""The name of a part in what holds its arguments."""


class Given(nn.Module):
    """A part with the further arguments of its call, by place or name: constants and buffers."""

    def __init__(self, part: nn.Module, places: tuple[Any, ...], names: Mapping[str, Any]) -> None:
        super().__init__()
        self.part = part
        self.others = pytree.tree_map_only(Tensor, self._keep, (places, dict(names)))

    def _keep(self, tensor: Tensor) -> BufferName:
        kept = BufferName(f"given {len(self._buffers)}")
        self.register_buffer(kept.name, tensor, persistent=False)
        return kept

    def forward(self, value: Tree) -> Tree:
        """The output of the part."""
        places, names = pytree.tree_map_only(
            BufferName, lambda kept: self._buffers[kept.name], self.others
        )
        return self.part(value, *places, **names)


@uncompiled()
def in_sequence(network: nn.Module, inputs: Tree) -> dict[str, nn.Module]:
    """The parts of a network in the order of their calls, seen with the `inputs` of a batch.

    Raises `InvalidConfiguration` for a network that does more than call them in turn.
    """
    parts = dict(_parts(network, (*LISTS, nn.Sequential)))
    state = dict(chain(network.named_parameters(), network.named_buffers()))
    on_meta = {name: tensor.to(META) for name, tensor in state.items()}
    numbers = [tensor.dtype for tensor in state.values() if tensor.is_floating_point()]
    value = in_precision(inputs, numbers[0] if numbers else torch.float32, META)
    calls, result = _calls(network, parts, on_meta, value)
    buffers = {id(on_meta[name]): tensor for name, tensor in network.named_buffers()}
    called: dict[str, nn.Module] = {}
    before, last = "the batch", value
    for call in calls:
        if call.name in called:
            _refuse(network, f"calls {call.name} twice", call.line)
        if not call.given or call.given[0] is not last:
            reason = f"does not call {call.name} with what {before} returns"
            _refuse(network, reason, call.line)
        called[call.name] = _with_others(network, parts[call.name], call, buffers)
        before, last = call.name, call.result
    if not called:
        _refuse(network, "calls no part of its own")
    if result is not last:
        _refuse(network, f"does not return what its last part, {before}, returns")
    for name, _ in network.named_parameters():
        if not any(name.startswith(f"{part}.") for part in called):
            _refuse(network, f"has {name}, which is in none of the parts that it calls")
    return called


def _refuse(network: nn.Module, reason: str, line: str = "") -> NoReturn:
    at = f" ({line})" if line else ""
    raise InvalidConfiguration(
        "model",
        f"{type(network).__name__} cannot be divided: it {reason}{at}; stages take parts that are "
        "called one after another, so put what happens between them (a residual, a mask) into a "
        "part, or give layers that return all that later ones need: Model([...], loss, batch)",
    )


def _parts(
    module: nn.Module, opened: tuple[type[nn.Module], ...]
) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        if isinstance(child, opened):
            yield from ((f"{name}.{inner}", part) for inner, part in _parts(child, LISTS))
        else:
            yield name, child


def _calls(
    network: nn.Module, parts: Mapping[str, nn.Module], state: Mapping[str, Tensor], value: Tree
) -> tuple[list[Call], Tree]:
    """The calls of its parts, and the outputs of a network, on shapes alone."""
    calls: list[Call] = []

    def seeing(name: str) -> Callable[..., None]:
        def called(_: nn.Module, given: Any, further: Any, result: Any) -> None:
            calls.append(Call(name, given, further, result, line_here()))
            under_way.remove(name)

        return called

    def beginning(name: str) -> Callable[..., None]:
        return lambda *_: under_way.append(name)

    under_way: list[str] = []
    hooks = [
        hook
        for name, part in parts.items()
        for hook in (
            part.register_forward_pre_hook(beginning(name)),
            part.register_forward_hook(seeing(name), with_kwargs=True),
        )
    ]
    try:
        with torch.no_grad(), META:
            return calls, functional_call(network, dict(state), (value,))
    except Exception as error:  # whatever a user's network raises
        raise InvalidConfiguration(
            "model",
            f"{type(network).__name__} does not take a batch's inputs"
            f"{f', in {under_way[-1]}' if under_way else ''}: {reason_of(error)}; or give its "
            "layers: Model([...], loss, batch)",
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


def _with_others(
    network: nn.Module, part: nn.Module, call: Call, buffers: Mapping[int, Tensor]
) -> nn.Module:
    """A part as it is called: with constants, and the network's buffers."""

    def kept(tensor: Tensor) -> Tensor:
        if id(tensor) not in buffers:
            reason = f"calls {call.name} with another tensor that it has computed"
            _refuse(network, reason, call.line)
        return buffers[id(tensor)]

    others = call.given[1:], dict(call.further)
    return Given(part, *pytree.tree_map_only(Tensor, kept, others)) if any(others) else part

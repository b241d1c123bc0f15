"""Buffers that passes change (running statistics, say): state, as weights are.

Which ones do is seen when layers are traced (`bfpp.executor.model.tracing.pass_effects`); all
others are constants, which whoever makes a layer makes again. Of those that change:

- A pass that is run again (recomputation) computes with the values that the pass had, in copies,
  and changes nothing more. An evaluation computes in copies, too.
- Within a step each replica has its own, and so has each copy of a stage, changed by its passes in
  the order of micro-batches. A unit's last reduction of a step gives all of them those of the first
  replica (and of the lowest rank), as DDP's `broadcast_buffers` does; so there is one value to
  evaluate with, to save and to resume from, whatever the sharding.
- A step that is left out changes no buffer either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bfpp.executor.checkpoint.pieces import DTYPES
from bfpp.schedules import InvalidConfiguration, Operation, TaskGraph
from bfpp.schedules.columns import NONE

Moving = Mapping[int, Collection[str]]
"""The buffers of each layer that passes change, by their names there."""


class BufferPlace(NamedTuple):
    """A buffer's name in the model, and the modules that have it, under which names."""

    name: str
    uses: tuple[tuple[nn.Module, str], ...]

    @property
    def value(self) -> Tensor:
        """The buffer, as it is now."""
        module, key = self.uses[0]
        return module.get_buffer(key)

    def put(self, value: Tensor) -> None:
        """Let another tensor be the buffer: one that autograd has seen is not written to."""
        for module, key in self.uses:
            setattr(module, key, value)


class MovingBuffers:
    """Buffers of some layers that passes change."""

    def __init__(self, places: Sequence[BufferPlace]) -> None:
        self.places = places
        self.kept: list[Tensor] = []

    @staticmethod
    def of(layers: Mapping[int, nn.Module], moving: Moving) -> MovingBuffers:
        """The moving buffers of layers, by layer number."""
        places: dict[int, BufferPlace] = {}
        for number, layer in layers.items():
            for name in sorted(moving.get(number, ())):
                path, _, key = name.rpartition(".")
                module = layer.get_submodule(path)
                own = BufferPlace(f"{number}.{name}", ((module, key),))
                known = places.setdefault(id(own.value), own)
                if known is not own:
                    places[id(own.value)] = known._replace(uses=(*known.uses, *own.uses))
        return MovingBuffers([*places.values()])

    def within(self, module: nn.Module) -> MovingBuffers:
        """The buffers that are in a module."""
        parts = {*module.modules()}
        return MovingBuffers(
            [place for place in self.places if {use for use, _ in place.uses} & parts]
        )

    @property
    def values(self) -> list[Tensor]:
        """The current values."""
        return [place.value for place in self.places]

    def put(self, values: Iterable[Tensor]) -> None:
        """Let other tensors take their places."""
        for place, value in zip(self.places, values, strict=True):
            place.put(value)

    def copied(self) -> list[Tensor]:
        """Copies of the current values."""
        return [value.detach().clone() for value in self.values]

    def before(self) -> Replaced:
        """Compute again with the current values, as often as need be."""
        return Replaced(self, self.copied())

    def write(self, values: Sequence[Tensor]) -> None:
        """Write values to the tensors that are there, between steps or where one ends."""
        for place, value in zip(self.places, values, strict=True):
            place.value.detach().copy_(value)

    def settle_in(self, tensors: Sequence[Tensor]) -> None:
        """Move the current values into these tensors, where a captured step expects them."""
        for place, tensor in zip(self.places, tensors, strict=True):
            if place.value is not tensor:
                tensor.detach().copy_(place.value)
                place.put(tensor)

    def keep(self) -> None:
        """Keep copies, to take back a step that is left out."""
        self.kept = self.copied()

    def settle(self, is_bad: Tensor) -> None:
        """Undo a step's changes if it is skipped; and keep the values of then."""
        self.write(
            [
                torch.where(is_bad.to(value.device) > 0, before, value)
                for before, value in zip(self.kept, self.values, strict=True)
            ]
        )
        self.keep()

    def flat(self) -> Iterator[tuple[str, Tensor]]:
        """Each one's name and its values in place, flat and in a dtype of checkpoints."""
        for place in self.places:
            if not place.value.is_contiguous():
                place.put(place.value.contiguous())
            value = place.value.detach()
            real = torch.view_as_real(value) if value.is_complex() else value
            flat = real.view(-1)
            if flat.numel():
                yield place.name, flat if flat.dtype in STORED else flat.view(torch.uint8)

    def shapes(self) -> dict[str, torch.Size]:
        """The shapes of those that checkpoints hold as they are; others are bytes there."""
        return {
            place.name: place.value.shape for place in self.places if place.value.dtype in STORED
        }

    def bytes(self) -> list[Tensor]:
        """The bytes of each, in place."""
        return [flat.view(torch.uint8) for _, flat in self.flat()]


class Replaced:
    """A context in which layers compute with copies of some values; changes to them are lost."""

    def __init__(self, buffers: MovingBuffers, values: Sequence[Tensor]) -> None:
        self.buffers, self.values = buffers, values
        self.now: list[Tensor] = []

    def __enter__(self) -> None:
        if self.values:
            self.now = self.buffers.values
            self.buffers.put(value.clone() for value in self.values)

    def __exit__(self, *_: object) -> None:
        if self.values:
            self.buffers.put(self.now)


STORED = frozenset(DTYPES.values())


def shared_after(graph: TaskGraph) -> frozenset[int]:
    """The tasks after which a unit's buffers are one replica's: its last reduction of each kind."""
    reductions: set[int] = set()
    for operation in (Operation.REDUCE, Operation.ALL_REDUCE):
        tasks = np.flatnonzero(graph.operation == operation)
        reductions |= {*dict(zip(graph.unit[tasks].tolist(), tasks.tolist(), strict=True)).values()}
    return frozenset(reductions)


def require_in_order(graph: TaskGraph, moving: Moving) -> None:
    """Raise `InvalidConfiguration` for buffers that passes change in an order of its own."""
    if not moving:
        return
    passes = (graph.operation == Operation.FORWARD) & graph.is_whole
    for rank in range(graph.layout.pp):
        for unit in graph.layout.units_of(rank):
            own = graph.microbatch[passes & (graph.rank == rank) & (graph.unit == unit)]
            if (np.diff(own[own != NONE]) < 0).any():
                layer = min(moving)
                raise InvalidConfiguration(
                    "model",
                    f"layer {layer} has a buffer that passes change, {min(moving[layer])}, and "
                    f"rank {rank} takes the micro-batches of stage {unit} in another order than "
                    "theirs",
                )

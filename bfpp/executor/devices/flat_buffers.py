"""Flat buffers: the parameters of a unit in one contiguous tensor, and its shares.

Theory of operation. Weights, gradients and moments of a unit each lie in one buffer that is
allocated once. A replica updates one share of it: all of it without sharding, else one of as many
equal, contiguous parts as there are shares. So a gather and a reduction are one collective, in
place, and an optimizer must be element-wise, since shares are cut anywhere; but for matrices of
Muon (`bfpp.executor.optimizer.muon`).

Invariants:

- A share is the same range of places in every buffer of the unit, whatever the buffer's precision.
  Buffers are padded so that shares are equal and begin at aligned addresses.
- A parameter that keeps float32 in a buffer of 16 bits has two places for each element, so that one
  gather brings it with the others. In buffers of more precision the second place is empty.
- Frozen weights, and those that are shared with another unit, have a state of their own: frozen
  ones have neither gradients nor moments, and shared ones lie at the same places in both units.
- Where gradients are reduced once a step, they stay in the unit's buffer, where the optimizer reads
  them; other shares of it are zeroed.

Rejected: sharding each parameter along its first dimension, as FSDP2 does. Optimizers could then be
of matrices, but each parameter is padded by itself, and a gather has to copy its shares out of one
buffer into as many tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn

FULL = torch.float32.itemsize
"""Bytes of a number in full precision."""

ROUND = 32
"""Elements that a share's size is a multiple of: 128 bytes in single precision."""


def memory_of(tensor: Tensor) -> int:
    """The address of a tensor's storage: the same for all views of it."""
    return tensor.untyped_storage().data_ptr()


def size_of(tensors: Iterable[Tensor], without: Collection[int] = ()) -> int:
    """Bytes of the storages of tensors, each counted once; except for those at some addresses."""
    storages = {memory_of(tensor): tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for place, storage in storages.items() if place not in without)


class UpdateRule(NamedTuple):
    """The update of a parameter: its weight decay, and whether it is a matrix of Muon's."""

    decay: float = 0.0
    is_matrix: bool = False


@dataclass(frozen=True)
class Flat:
    """The layout of a unit's parameters in a flat buffer, and how each is updated."""

    shapes: Mapping[str, torch.Size]
    shares: int
    rules: Mapping[str, UpdateRule] = field(default_factory=dict)
    wide: int = 0
    """Number of parameters, the first ones, that keep float32 in buffers of 16 bits.

    Their elements take two places each there. In any other buffer the second one is empty,
    so that a share is the same part of each.
    """

    @cached_property
    def strides(self) -> dict[str, int]:
        """The places that an element of each parameter takes."""
        return {name: 2 if number < self.wide else 1 for number, name in enumerate(self.shapes)}

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The places of each parameter."""
        return {name: shape.numel() * self.strides[name] for name, shape in self.shapes.items()}

    @cached_property
    def offsets(self) -> dict[str, int]:
        """The first place of each parameter."""
        return dict(zip(self.sizes, accumulate(self.sizes.values(), initial=0), strict=False))

    @property
    def share(self) -> int:
        """Elements of a share, the padding included; there is some in a unit without parameters.

        A unit's first gradient marks a loss that is not finite, for all replicas.
        """
        total = sum(self.sizes.values())
        return max(1, -(-total // (self.shares * ROUND))) * ROUND

    @property
    def size(self) -> int:
        """Elements of the whole buffer, the padding included."""
        return self.share * self.shares

    @cached_property
    def stretches(self) -> list[tuple[UpdateRule, range]]:
        """Neighbours that are updated alike, and their places; the padding belongs to the last."""
        rules = [(self.rules.get(name, UpdateRule()), self.offsets[name]) for name in self.shapes]
        begins = [
            (rule, next(each)[1]) for rule, each in groupby(rules, key=lambda each: each[0])
        ] or [(UpdateRule(), 0)]
        ends = [*(begin for _, begin in begins[1:]), self.size]
        return [(rule, range(begin, end)) for (rule, begin), end in zip(begins, ends, strict=True)]

    def views(self, buffer: Tensor) -> dict[str, Tensor]:
        """Views of each parameter."""
        views = {}
        for name, offset in self.offsets.items():
            places = buffer[offset : offset + self.sizes[name]]
            if self.strides[name] > 1:
                places = _both(places) if buffer.itemsize < FULL else places[::2]
            views[name] = places.view(self.shapes[name])
        return views

    def matrices_in(self, share: int) -> int:
        """The places of a share that are updated as matrices."""
        first, last = share * self.share, (share + 1) * self.share
        return sum(
            max(0, min(places.stop, last) - max(places.start, first))
            for rule, places in self.stretches
            if rule.is_matrix
        )

    @property
    def has_matrices(self) -> bool:
        """True if there are parameters that are updated as matrices."""
        return any(rule.is_matrix for rule in self.rules.values())

    def matrices(self, buffer: Tensor) -> Iterator[tuple[str, range, Tensor]]:
        """The matrices that are updated as such: name, places, and values in a buffer of numbers.

        Whatever its precision, an element has one number there, as in the training state.
        """
        for name, offset in self.offsets.items():
            if name in self.rules and self.rules[name].is_matrix:
                places = range(offset, offset + self.sizes[name])
                own = buffer[places.start : places.stop : self.strides[name]]
                yield name, places, own.view(self.shapes[name])

    def put(self, values: Tensor, buffer: Tensor, first: int = 0) -> None:
        """Fill a buffer with values: the places from `first` on.

        They are rounded to the buffer's precision, except for those that keep float32.
        """
        buffer.copy_(values)
        end = sum([*self.sizes.values()][: self.wide])
        if buffer.itemsize < FULL and first < end:
            wide = min(end - first, len(buffer))
            _both(buffer[:wide]).copy_(values[:wide:2])

    def pieces(self, values: Tensor, start: int) -> Iterator[tuple[str, int, Tensor]]:
        """Parts of parameters in `values`, from place `start` on: name, first element, elements."""
        stop = start + len(values)
        for name, offset in self.offsets.items():
            first, last = max(offset, start), min(offset + self.sizes[name], stop)
            if first < last:
                stride = self.strides[name]
                here = values[first - start : last - start : stride]
                yield name, (first - offset) // stride, here


def _both(places: Tensor) -> Tensor:
    """Two places of 16 bits each as one of float32."""
    return places.view(torch.float32)


class UnitState:
    """A replica's share of a unit: weights and gradients.

    Frozen weights have a state of their own, with neither gradients nor moments; and so have those
    that another unit shares, which has a state of the same places.
    """

    def __init__(
        self,
        flat: Flat,
        number: int,
        dtype: torch.dtype,
        device: torch.device,
        is_trained: bool = True,
    ) -> None:
        self.flat = flat
        self.own = slice(number * flat.share, (number + 1) * flat.share)
        share = torch.zeros(flat.share, dtype=dtype, device=device)
        self.weights = nn.Parameter(share, is_trained)

    def fill(self, values: Mapping[str, Tensor]) -> None:
        """Take the share's part of whole parameters, of those that are given."""
        for name, first, own in self.pieces(self.weights.detach()):
            if name in values:
                own.copy_(values[name].flatten()[first : first + len(own)])

    def reduce_to(self, gradients: Tensor) -> None:
        """Let reduced gradients of this share be there: the optimizer reads them there, too."""
        self.weights.grad = gradients

    @property
    def gradients(self) -> Tensor:
        """The gradients of this share that were reduced so far."""
        assert self.weights.grad is not None  # noqa: S101
        return self.weights.grad

    def pieces(self, values: Tensor) -> list[tuple[str, int, Tensor]]:
        """The parts of parameters in a buffer like the share's own."""
        return [*self.flat.pieces(values, self.own.start)]

    def part(self, buffer: Tensor) -> Tensor:
        """The share's part of a buffer of the whole unit."""
        return buffer[self.own]

    def take(self, total: Tensor, buffer: Tensor) -> None:
        """Add the shard's part of the reduced gradient, and clear its buffer.

        Where the gradients are in that buffer, they stay there.
        """
        if memory_of(buffer) != memory_of(self.gradients):
            self.gradients.add_(self.part(total))
            buffer.zero_()
            return
        if memory_of(total) != memory_of(buffer):
            self.gradients.copy_(self.part(total))
        buffer[: self.own.start].zero_()
        buffer[self.own.stop :].zero_()

    def write(self, buffer: Tensor) -> Tensor:
        """Put the weights in the share's part of a buffer of weights; that part."""
        own = self.part(buffer)
        self.flat.put(self.weights.detach(), own, self.own.start)
        return own


def parameters_of(layers: Mapping[int, nn.Module]) -> dict[str, list[tuple[nn.Module, str]]]:
    """The places in modules where each parameter of some layers is used.

    A parameter is named by its layer's number and its name there, so that the
    name does not depend on the unit. One that is used twice has one name.
    """
    places: dict[str, list[tuple[nn.Module, str]]] = {}
    names: dict[int, str] = {}
    for number, layer in layers.items():
        for prefix, module in layer.named_modules():
            for key, parameter in module.named_parameters(recurse=False):
                name = names.setdefault(
                    id(parameter), ".".join(filter(None, (str(number), prefix, key)))
                )
                places.setdefault(name, []).append((module, key))
    return places


def values_of(places: Mapping[str, Sequence[tuple[nn.Module, str]]]) -> dict[str, Tensor]:
    """The values of parameters, from the first place of each."""
    return {name: getattr(*uses[0]).detach() for name, uses in places.items()}


def frozen_of(places: Mapping[str, Sequence[tuple[nn.Module, str]]]) -> set[str]:
    """The parameters that are not trained."""
    return {name for name, uses in places.items() if not getattr(*uses[0]).requires_grad}


def flat_of(
    shapes: Mapping[str, torch.Size],
    shares: int,
    wide: Collection[str],
    rules: Mapping[str, UpdateRule],
) -> Flat:
    """The layout of parameters of these shapes in a flat buffer.

    Which are `wide`, by name, are first; those that are updated alike are together.
    """
    names = sorted(shapes, key=lambda name: (name not in wide, rules[name]))
    own = {name: rules[name] for name in names}
    return Flat({name: shapes[name] for name in names}, shares, own, len(shapes.keys() & wide))

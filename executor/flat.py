"""Flat memory: the parameters of a stage in one contiguous buffer, and its shares.

Each replica keeps, and updates, one share of every stage: all of it without
sharding, else one contiguous part. Buffers are padded so that shares are equal
and begin at round addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

ROUND = 32
"""Elements that a share's size is a multiple of: 128 bytes in single precision."""


def memory_of(tensor: Tensor) -> int:
    """Where a tensor's memory begins: the same for all views of it."""
    return tensor.untyped_storage().data_ptr()


@dataclass(frozen=True)
class Flat:
    """Where each parameter of a stage lies in a flat buffer."""

    shapes: Mapping[str, torch.Size]
    shares: int

    @property
    def offsets(self) -> dict[str, int]:
        """The first element of each parameter."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        return dict(zip(self.shapes, accumulate(sizes, initial=0), strict=False))

    @property
    def share(self) -> int:
        """Elements of a share, the padding included; there is some in a stage without parameters.

        A stage's first gradient tells all replicas of a loss that is not finite.
        """
        total = sum(shape.numel() for shape in self.shapes.values())
        return max(1, -(-total // (self.shares * ROUND))) * ROUND

    @property
    def size(self) -> int:
        """Elements of the whole buffer, the padding included."""
        return self.share * self.shares

    def views(self, buffer: Tensor) -> dict[str, Tensor]:
        """Each parameter, in place."""
        return {
            name: buffer[offset : offset + self.shapes[name].numel()].view(self.shapes[name])
            for name, offset in self.offsets.items()
        }

    def pieces(self, share: Tensor, number: int) -> Iterator[tuple[str, int, Tensor]]:
        """What a share holds of each parameter: its name, the first element, the elements."""
        start, stop = number * self.share, (number + 1) * self.share
        for name, offset in self.offsets.items():
            first, last = max(offset, start), min(offset + self.shapes[name].numel(), stop)
            if first < last:
                yield name, first - offset, share[first - start : last - start]


class StageState:
    """A replica's share of a stage: weights, gradients, and what the optimizer keeps of them.

    Frozen weights have a state of their own, with neither gradients nor moments.
    """

    def __init__(
        self,
        flat: Flat,
        number: int,
        values: Tensor,
        dtype: torch.dtype,
        is_trained: bool = True,
    ) -> None:
        self.flat = flat
        self.number = number
        self.own = slice(number * flat.share, (number + 1) * flat.share)
        self.weights = nn.Parameter(values[self.own].to(dtype, copy=True), is_trained)
        self.weights.grad = torch.zeros_like(self.weights) if is_trained else None

    @property
    def gradients(self) -> Tensor:
        """What was reduced so far, of this share."""
        assert self.weights.grad is not None  # noqa: S101
        return self.weights.grad

    def moments(self, counts_on: torch.device) -> dict[str, Tensor]:
        """What Adam keeps of the share before its first step, by torch's names."""
        return {
            "step": torch.zeros((), dtype=torch.float32, device=counts_on),
            "exp_avg": torch.zeros_like(self.weights),
            "exp_avg_sq": torch.zeros_like(self.weights),
        }

    def part(self, buffer: Tensor) -> Tensor:
        """The share's part of a buffer of the whole stage."""
        return buffer[self.own]


def parameters_of(layers: Mapping[int, nn.Module]) -> dict[str, list[tuple[nn.Module, str]]]:
    """For each parameter of some layers, the places that it is used in.

    A parameter is named by its layer's number and its name there, so that the
    name does not depend on the stage. One that is used twice has one name.
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


def are_trained(
    places: Mapping[str, list[tuple[nn.Module, str]]], trained: bool = True
) -> dict[str, list[tuple[nn.Module, str]]]:
    """Those parameters that are trained, or those that are frozen."""
    return {
        name: uses for name, uses in places.items() if getattr(*uses[0]).requires_grad is trained
    }


def flatten(
    places: Mapping[str, Sequence[tuple[nn.Module, str]]], shares: int, device: torch.device
) -> tuple[Flat, Tensor]:
    """Where parameters lie in a flat buffer, and their values there."""
    values = {name: getattr(*uses[0]).detach() for name, uses in places.items()}
    flat = Flat({name: value.shape for name, value in values.items()}, shares)
    dtypes = {value.dtype for value in values.values()}
    largest = max(dtypes, key=lambda each: each.itemsize, default=torch.float32)
    buffer = torch.zeros(flat.size, dtype=largest, device=device)
    for name, view in flat.views(buffer).items():
        view.copy_(values[name])
    return flat, buffer

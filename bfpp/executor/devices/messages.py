"""Messages between stages: any pytree of tensors, packed into one.

A layer may take and return a tensor, or tensors in tuples, lists, dictionaries and whatever
else torch's pytrees know: hidden states with masks, positions, or a second stream. Its form is
recorded once, by running the layers on shapes alone, so that messages need no header. What is
not a tensor (None, a number, a string) is part of the form, and the same in every pass.

Rules:

- All tensors of a payload travel together, as one message: the tensor itself, if it is one of
  floating-point numbers, else the bytes of all, concatenated.
- Gradients come back for those tensors alone that autograd has one for: neither whole numbers
  have one, nor what no parameter was used for, as below a frozen layer.
- A task has a message even if nothing is in it: one byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, compress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bfpp.schedules import InvalidConfiguration

Tree = Any
"""A tensor, or tensors in whatever torch's pytrees know."""

ROUND = 64
"""Bytes that each tensor of a message begins at a multiple of."""

CONSTANTS = (bool, int, float, str, type(None))
"""Values that a payload may have besides tensors."""


@dataclass(frozen=True)
class Shape:
    """The size of a tensor, and the kind of its numbers."""

    size: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: Tensor) -> Shape:
        """The shape of a tensor."""
        return Shape(tuple(tensor.shape), tensor.dtype)

    @property
    def bytes(self) -> int:
        """Its size in bytes."""
        return torch.Size(self.size).numel() * self.dtype.itemsize

    def __str__(self) -> str:
        return f"shape {self.size} in {self.dtype}"


@dataclass(frozen=True)
class Message:
    """Tensors that are sent as one."""

    parts: tuple[Shape, ...]

    @cached_property
    def is_plain(self) -> bool:
        """True if the only tensor is sent unpacked: not every backend can send every kind."""
        return len(self.parts) == 1 and self.parts[0].dtype.is_floating_point

    @cached_property
    def shape(self) -> Shape:
        """The shape of the tensor that is sent."""
        return self.parts[0] if self.is_plain else Shape((max(self._begins[-1], 1),), torch.uint8)

    @cached_property
    def _begins(self) -> list[int]:
        """The offset of each part in bytes, and the end of the last one."""
        rounded = [-(-part.bytes // ROUND) * ROUND for part in self.parts]
        return list(accumulate(rounded, initial=0))

    def views(self, sent: Tensor) -> tuple[Tensor, ...]:
        """The parts, as views of the message's memory."""
        if self.is_plain:
            return (sent,)
        return tuple(
            sent[begin : begin + part.bytes].view(part.dtype).view(part.size)
            for begin, part in zip(self._begins, self.parts, strict=False)
        )


@dataclass(frozen=True)
class Form:
    """A payload except for its numbers.

    `leaves` has the `Shape` of each tensor, and the rest as it is; `has_gradient` says of
    each tensor whether a gradient comes back for it.
    """

    tree: pytree.TreeSpec
    leaves: tuple[object, ...]
    has_gradient: tuple[bool, ...] = field(compare=False)

    @staticmethod
    def of(value: Tree, what: str) -> Form:
        """The form of a value; raises `InvalidConfiguration` for one that cannot be sent."""
        leaves, tree = pytree.tree_flatten(value)
        for leaf in leaves:
            if not isinstance(leaf, (Tensor, *CONSTANTS)):
                raise InvalidConfiguration(
                    "model",
                    f"{what} {type(leaf).__name__}: only tensors can be passed on, alone or in "
                    "tuples, lists and dictionaries, with numbers, strings and None",
                )
        return Form(
            tree,
            tuple(Shape.of(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves),
            tuple(leaf.requires_grad for leaf in leaves if isinstance(leaf, Tensor)),
        )

    @cached_property
    def values(self) -> Message:
        """All tensors."""
        return Message(tuple(leaf for leaf in self.leaves if isinstance(leaf, Shape)))

    @cached_property
    def gradients(self) -> Message:
        """The tensors that have a gradient."""
        return Message(self.with_gradient(self.values.parts))

    def with_gradient(self, each: Sequence[Any]) -> tuple[Any, ...]:
        """Select items, one for each tensor, of the tensors that have a gradient."""
        return tuple(compress(each, self.has_gradient))

    def filled(self, tensors: Sequence[Tensor]) -> Tree:
        """The value with these tensors."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, Shape) else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.tree)

    def require(self, value: Tree, what: str) -> tuple[Tensor, ...]:
        """The tensors of a value; raises `InvalidConfiguration` if it is of another form."""
        if isinstance(value, Tensor) and self.leaves == (Shape.of(value),) and self.tree.is_leaf():
            return (value,)  # as what follows, in less time
        form = Form.of(value, what)
        if form != self:
            raise InvalidConfiguration("model", f"{what} {form}, and the first had {self}")
        return tensors_of(value)

    def __str__(self) -> str:
        return str(pytree.tree_unflatten([str(leaf) for leaf in self.leaves], self.tree))


def tensors_of(value: Tree) -> tuple[Tensor, ...]:
    """The tensors of a payload, in order."""
    return tuple(leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))


def in_precision(value: Tree, dtype: torch.dtype, device: torch.device | None = None) -> Tree:
    """A payload whose floating-point numbers are of this precision."""
    return pytree.tree_map_only(
        Tensor,
        lambda tensor: tensor.to(
            device=device, dtype=dtype if tensor.is_floating_point() else None
        ),
        value,
    )


@dataclass(frozen=True)
class Parcel:
    """Tensors that a stage was given, and the pool's memory that they lie in, if they do."""

    tensors: tuple[Tensor, ...]
    lent: Tensor | None = None


class Cell(NamedTuple):
    """A micro-batch at a unit: the pass that a parcel is for."""

    unit: int
    microbatch: int

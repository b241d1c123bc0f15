"""Slices of parameters on a tensor-parallel rank.

A rank's slice of a parameter is a run of elements that repeats at a fixed stride: one run of a
matrix that is divided by rows, and one in each row of a matrix that is divided by columns.
Training states and checkpoints name elements by their place in the whole parameter, so that these
do not depend on how many ranks there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bfpp.executor.checkpoint.boxes import boxes_of
from bfpp.executor.model.parallel.exchange import Shards


@dataclass(frozen=True)
class Slice:
    """Part number `rank` of `ranks` along a dimension of a parameter, or of each of its `blocks`.

    Blocks lie one after another along that dimension: keys and values, say. Parts are equal, but
    that the last one has what is left.
    """

    shape: torch.Size
    dim: int
    blocks: int
    rank: int
    ranks: int

    @property
    def length(self) -> int:
        """Size of a block along the dimension."""
        return self.shape[self.dim] // self.blocks

    @property
    def width(self) -> int:
        """Size of each rank's part, except the last one's."""
        return -(-self.length // self.ranks)

    @property
    def first(self) -> int:
        """Offset of this part in a block."""
        return self.rank * self.width

    @property
    def inner(self) -> int:
        """The elements of one place along the dimension."""
        return math.prod(self.shape[self.dim + 1 :])

    @property
    def row(self) -> int:
        """The elements of a block: the parts have a run of each."""
        return self.length * self.inner

    def of(self, value: Tensor) -> Tensor:
        """The part of the whole parameter; a copy."""
        blocks: Tensor = value.unflatten(self.dim, (self.blocks, self.length))
        own = blocks.narrow(self.dim + 1, self.first, min(self.width, self.length - self.first))
        return own.flatten(self.dim, self.dim + 1).clone(memory_format=torch.contiguous_format)

    def joined(self, shards: Shards, part: Tensor) -> Tensor:
        """The whole parameter, of the parts of all ranks, which are equal."""
        blocks: Tensor = part.unflatten(self.dim, (self.blocks, self.width))
        whole = shards.all_gather(blocks, self.dim + 1)()
        return whole.flatten(self.dim, self.dim + 1)

    def pieces(self, first: int, values: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Offsets in the whole parameter of `values`, from element `first` of the part on.

        Of a matrix that is divided by columns, runs of whole rows come as one piece; else each run
        comes alone.
        """
        run = min(self.width, self.length - self.first) * self.inner
        is_of_rows = self.row == self.shape[1:].numel()
        for begin, box in boxes_of(first, len(values), run):
            own = values[begin : begin + box.size].view(box.rows, box.columns)
            place = box.row * self.row + self.first * self.inner + box.column
            if is_of_rows:
                yield place, own
            else:
                yield from ((place + self.row * row, each) for row, each in enumerate(own))


def slices_of(places: Mapping[str, Sequence[tuple[nn.Module, str]]]) -> dict[str, Slice]:
    """The slices of sharded parameters among those that are used in these places."""
    slices = {}
    for name, ((module, key), *_) in places.items():
        own: Mapping[str, Slice] = getattr(module, "slices", {})
        if key in own:
            slices[name] = own[key]
    return slices

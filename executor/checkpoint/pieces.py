"""What a process holds of a tensor: intervals of its flattened values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
    )
}
"""What a checkpoint can hold, by the name that it has there."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """A process's part of a tensor of `size` values: all, some or none of them.

    Each piece is the offset of its first value and a 1-D view of the buffer that
    holds the values. Pieces may overlap or be the same (replicas in
    one process): saving takes one of them, loading fills all. Empty ones count
    for nothing. Raises `ValueError` for pieces that cannot be.
    """

    size: int
    pieces: Sequence[tuple[int, torch.Tensor]]

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a tensor has at least one value, not {self.size}")
        for offset, values in self.pieces:
            if values.dim() != 1:
                raise ValueError(f"the piece at {offset} has {values.dim()} dimensions, not one")
            if offset < 0 or offset + len(values) > self.size:
                raise ValueError(
                    f"the piece of {len(values)} values at {offset} is not within {self.size}"
                )
        dtypes = {values.dtype for _, values in self.pieces}
        if len(dtypes) > 1 or not dtypes <= set(DTYPES.values()):
            raise ValueError(f"pieces of one supported dtype are needed, not of {dtypes}")

    def nonempty(self) -> list[tuple[int, torch.Tensor]]:
        """The pieces that hold a value."""
        return [(offset, values) for offset, values in self.pieces if len(values)]

    def view(self, start: int, stop: int) -> torch.Tensor:
        """The values from `start` to `stop`, which one of the pieces holds."""
        return next(
            values.detach()[start - offset : stop - offset]
            for offset, values in self.pieces
            if offset <= start and stop <= offset + len(values)
        )


@dataclass(frozen=True)
class Holding:
    """What a process tells the others about its part of a tensor: all but the values."""

    size: int
    dtype: torch.dtype
    intervals: tuple[tuple[int, int], ...]
    """Start and stop of each, once."""


Holdings = Mapping[str, Holding | None]
"""By the tensor's name; None of what the process knows but holds nothing of."""


def holdings(tensors: Mapping[str, Pieces]) -> Holdings:
    """What a process holds of each tensor."""
    return {name: _holding(pieces) for name, pieces in tensors.items()}


def _holding(pieces: Pieces) -> Holding | None:
    held = pieces.nonempty()
    if not held:
        return None
    intervals = {(offset, offset + len(values)): None for offset, values in held}
    return Holding(pieces.size, held[0][1].dtype, tuple(intervals))

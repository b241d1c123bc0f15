"""Pieces of a tensor on a process: intervals of its flattened values, or parts of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from bfpp.executor.checkpoint.boxes import Box, boxes_of

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
"""Dtypes that a checkpoint can hold, by name."""


@dataclass(frozen=True, eq=False)
class TensorPieces:
    """A process's part of a tensor of `size` values: all, some or none of them.

    Each piece is the offset of its first value and a view of the buffer that holds the
    values: 1-D, or 2-D of the same columns of some rows, where the tensor is a matrix with
    rows of `row` values (else it is one row). Its `shape` is that of these rows, unless another
    is given, whose first dimension has the rows. Pieces may overlap or be the same (replicas in
    one process): saving takes one of them, loading fills all. Empty ones count
    for nothing. Raises `ValueError` for pieces that cannot be.
    """

    size: int
    pieces: Sequence[tuple[int, torch.Tensor]]
    row: int | None = None
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a tensor has at least one value, not {self.size}")
        if self.columns < 1 or self.size % self.columns:
            raise ValueError(f"{self.size} values are not rows of {self.columns}")
        if (self.size // self.columns, self.columns) != matrix_of(self.whole_shape):
            raise ValueError(f"{self.shape} is not the shape of rows of {self.columns}")
        for offset, values in self.pieces:
            if values.dim() not in (1, 2):
                raise ValueError(f"the piece at {offset} has {values.dim()} dimensions")
            if values.dim() == 1:
                box, most = Box(0, offset, 1, len(values)), Box(0, 0, 1, self.size)
            else:
                box = Box(*divmod(offset, self.columns), *values.shape)
                most = Box(0, 0, self.size // self.columns, self.columns)
            if not most.covers(box):
                raise ValueError(
                    f"the piece of {values.numel()} values at {offset} is not within {self.size}"
                )
        dtypes = {values.dtype for _, values in self.pieces}
        if len(dtypes) > 1 or not dtypes <= set(DTYPES.values()):
            raise ValueError(f"pieces of one supported dtype are needed, not of {dtypes}")

    @property
    def columns(self) -> int:
        """Values of a row."""
        return self.size if self.row is None else self.row

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        if self.shape is not None:
            return tuple(self.shape)
        return (self.size,) if self.row is None else (self.size // self.row, self.row)

    def nonempty(self) -> list[tuple[int, torch.Tensor]]:
        """The pieces that hold a value."""
        return [(offset, values) for offset, values in self.pieces if values.numel()]

    def boxes(self, columns: int) -> Iterator[tuple[Box, torch.Tensor]]:
        """The pieces as boxes of the tensor in rows of `columns` values."""
        for offset, values in self.nonempty():
            if values.dim() == 1:
                for begin, box in boxes_of(offset, len(values), columns):
                    own = values.detach()[begin : begin + box.size]
                    yield box, own.view(box.rows, box.columns)
            else:
                yield Box(*divmod(offset, columns), *values.shape), values.detach()

    def view(self, wanted: Box) -> torch.Tensor:
        """The values of a box, which one of the pieces holds."""
        return next(
            part(values, wanted.row - box.row, wanted.column - box.column, *wanted[2:])
            for box, values in self.boxes(self.columns)
            if box.covers(wanted)
        )

    def within(self, whole: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each piece with its view of a flat tensor of all values."""
        matrix = whole.view(-1, self.columns)
        for box, values in self.boxes(self.columns):
            yield part(matrix, *box), values


def part(matrix: torch.Tensor, row: int, column: int, rows: int, columns: int) -> torch.Tensor:
    """A view of some rows and columns."""
    return matrix[row : row + rows, column : column + columns]


def matrix_of(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a tensor: its first dimension, and the others as one; else one row."""
    return (shape[0], prod(shape[1:])) if len(shape) > 1 else (1, prod(shape))


class WithShape:
    """A tensor of some shape, which is cut as a matrix."""

    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of its values."""
        return prod(self.shape)

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return matrix_of(self.shape)[0]

    @property
    def columns(self) -> int:
        """The values of a row."""
        return matrix_of(self.shape)[1]


@dataclass(frozen=True)
class Holding:
    """Metadata of a process's part of a tensor, which it sends to the others."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    boxes: tuple[Box, ...]
    """Without repetition."""


Holdings = Mapping[str, Holding | None]
"""Pieces by the tensor's name; None for a tensor of which the process holds nothing."""


def holdings(tensors: Mapping[str, TensorPieces]) -> Holdings:
    """Pieces of each tensor on a process."""
    return {name: _holding(pieces) for name, pieces in tensors.items()}


def _holding(pieces: TensorPieces) -> Holding | None:
    held = pieces.nonempty()
    if not held:
        return None
    boxes = dict.fromkeys(box for box, _ in pieces.boxes(pieces.columns))
    return Holding(pieces.whole_shape, held[0][1].dtype, tuple(boxes))

"""Save and load plans for torch.distributed.checkpoint, from `TensorPieces`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_global_save_plan,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from bfpp.executor.checkpoint.boxes import Box, boxes_of, shared
from bfpp.executor.checkpoint.pieces import (
    Holdings,
    TensorPieces,
    WithShape,
    holdings,
    matrix_of,
    part,
)
from bfpp.executor.checkpoint.processes import CheckpointError, one_line


@contextmanager
def one_failure(path: Path) -> Iterator[None]:
    """Turn torch's list of failures by process into the first one's `CheckpointError`."""
    try:
        yield
    except CheckpointException as failed:
        cause = next(iter(failed.failures.values()))[0]
        raise one_line(cause, path) from failed


@dataclass(frozen=True)
class Whole(WithShape):
    """A tensor, as the processes that hold some of it agree on it."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.dtype} of shape {[*self.shape]}"


def agreed(name: str, every: Sequence[Holdings]) -> Whole | None:
    """Shape and dtype of a tensor, None if no process holds any of it.

    Raises `CheckpointError` if two processes do not mean the same.
    """
    held = [holding for each in every if (holding := each.get(name)) is not None]
    kinds = {Whole(each.shape, each.dtype) for each in held}
    if len(kinds) > 1:
        different = " and ".join(sorted(map(str, kinds)))
        raise CheckpointError(f"{name}: processes hold it as {different}")
    return kinds.pop() if kinds else None


class SavePieces(DefaultSavePlanner):
    """Each value is written by the process, of those that hold it, with least to write so far."""

    def set_up_planner(
        self,
        state_dict: dict[str, TensorPieces],
        storage_meta: StorageMeta | None = None,  # noqa: ARG002
        is_coordinator: bool = False,  # noqa: ARG002
    ) -> None:
        """Takes the tensors that are to be saved."""
        self.tensors = state_dict

    def create_local_plan(self) -> SavePlan:
        """The pieces of this process; process 0 decides which of them are written here."""
        return SavePlan([], planner_data=holdings(self.tensors))

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Raises `CheckpointError` for values that no process holds."""
        every: list[Holdings] = [plan.planner_data for plan in all_plans]
        items: list[list[WriteItem]] = [[] for _ in every]
        planned = [0] * len(every)
        for name in sorted({name for each in every for name in each}):
            whole = agreed(name, every)
            if whole is None:
                raise CheckpointError(f"{name}: no process holds any of it")
            held = [
                (box, process)
                for process, each in enumerate(every)
                if (holding := each.get(name)) is not None
                for box in holding.boxes
            ]
            for box, holders in shared(whole.rows, whole.columns, held):
                if not holders:
                    first = box.row * whole.columns + box.column
                    last = first + (box.rows - 1) * whole.columns + box.columns - 1
                    raise CheckpointError(f"{name}: no process holds values {first} to {last}")
                writer = min(holders, key=planned.__getitem__)
                planned[writer] += box.size * whole.dtype.itemsize
                items[writer] += _write_items(name, whole, box)
        return create_default_global_save_plan([SavePlan(each) for each in items])

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        """The values of an item of the plan."""
        data: Any = write_item.tensor_data
        values = self.tensors[write_item.index.fqn].view(box_of(data.chunk, data.size))
        return values.reshape(data.chunk.sizes)


def chunk_of(box: Box) -> ChunkStorageMetadata:
    """A box of a matrix in torch's words."""
    return ChunkStorageMetadata(torch.Size(box[:2]), torch.Size(box[2:]))


def chunks_of(box: Box, shape: Sequence[int]) -> Iterator[ChunkStorageMetadata]:
    """A box of a tensor's rows as blocks of the tensor: one, unless rows have dimensions."""
    if len(shape) <= 2:
        dimensions = len(shape)
        begins, sizes = (torch.Size(each[2 - dimensions :]) for each in (box[:2], box[2:]))
        yield ChunkStorageMetadata(begins, sizes)
    elif box.columns == prod(shape[1:]):
        inner = torch.Size(shape[1:])
        yield ChunkStorageMetadata(
            torch.Size([box.row, *(0 for _ in inner)]), torch.Size([box.rows, *inner])
        )
    else:
        _, columns = matrix_of(shape[1:])
        for row in range(box.row, box.row + box.rows):
            for _, part_of_row in boxes_of(box.column, box.columns, columns):
                for chunk in chunks_of(part_of_row, shape[1:]):
                    yield ChunkStorageMetadata(
                        torch.Size([row, *chunk.offsets]), torch.Size([1, *chunk.sizes])
                    )


def box_of(chunk: ChunkStorageMetadata, shape: Sequence[int]) -> Box:
    """A block of a tensor as a box of its rows."""
    if len(shape) <= 1:
        return Box(0, sum(chunk.offsets), 1, prod(chunk.sizes))
    column = 0
    for begin, length in zip(chunk.offsets[1:], shape[1:], strict=True):
        column = column * length + begin
    return Box(chunk.offsets[0], column, chunk.sizes[0], prod(chunk.sizes[1:]))


def _write_items(name: str, whole: Whole, box: Box) -> Iterator[WriteItem]:
    properties = TensorProperties(dtype=whole.dtype)
    for chunk in chunks_of(box, whole.shape):
        yield WriteItem(
            MetadataIndex(name, chunk.offsets),
            WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk, properties, torch.Size(whole.shape)),
        )


class LoadPieces(DefaultLoadPlanner):
    """Every piece of this process is filled, whichever stored pieces its values are in.

    Both are in rows of `columns` values, by the tensor's name.
    """

    def __init__(self, columns: Mapping[str, int]) -> None:
        super().__init__()
        self.columns = columns

    def set_up_planner(
        self,
        state_dict: dict[str, TensorPieces],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,  # noqa: ARG002
    ) -> None:
        """Take the tensors to read into, and the stored metadata."""
        self.metadata: Any = metadata
        self.destinations = {
            name: [*pieces.boxes(self.columns[name])] for name, pieces in state_dict.items()
        }

    def create_local_plan(self) -> LoadPlan:
        """Overlaps of the stored pieces with those here."""
        items: list[ReadItem] = []
        for name, pieces in self.destinations.items():
            chunks = [chunk_of(box) for box, _ in pieces]
            stored = self.metadata.state_dict_metadata[name]
            items += create_read_items_for_chunk_list(name, stored, chunks)
        return LoadPlan(items)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """The part of a piece that an item of the plan fills."""
        # By number: two replicas' pieces can start at the same value.
        number: Any = read_item.dest_index.index
        _, piece = self.destinations[read_item.dest_index.fqn][number]
        return part(piece, *read_item.dest_offsets, *read_item.lengths)

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:  # noqa: ARG002
        """Never called: torch's planner would unpickle values other than tensors."""
        raise CheckpointError(f"{read_item.dest_index.fqn}: not a tensor")

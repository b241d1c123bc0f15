"""Who writes what, and what is read into which piece: torch's plans, from `Pieces`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from bfpp.executor.checkpoint.pieces import Holdings, Pieces, holdings
from bfpp.executor.checkpoint.processes import CheckpointError, one_line


@contextmanager
def one_failure(path: Path) -> Iterator[None]:
    """Turns torch's list of what failed in which process into the first one's `CheckpointError`."""
    try:
        yield
    except CheckpointException as failed:
        cause = next(iter(failed.failures.values()))[0]
        raise one_line(cause, path) from failed


class Whole(NamedTuple):
    """A tensor, as the processes that hold some of it agree on it."""

    size: int
    dtype: torch.dtype


def agreed(name: str, every: Sequence[Holdings]) -> Whole | None:
    """Size and dtype of a tensor, None if no process holds any of it.

    Raises `CheckpointError` if two processes do not mean the same.
    """
    held = [holding for each in every if (holding := each.get(name)) is not None]
    kinds = {Whole(each.size, each.dtype) for each in held}
    if len(kinds) > 1:
        told = " and ".join(sorted(f"{size} values of {dtype}" for size, dtype in kinds))
        raise CheckpointError(f"{name}: processes hold it as {told}")
    return kinds.pop() if kinds else None


def segments(
    size: int, held: Iterable[tuple[int, int, int]]
) -> Iterator[tuple[int, int, list[int]]]:
    """The longest intervals that the same processes hold, and those processes.

    `held` has start, stop and process of every interval that one holds.
    """
    starting: dict[int, list[int]] = defaultdict(list)
    stopping: dict[int, list[int]] = defaultdict(list)
    for start, stop, process in held:
        starting[start].append(process)
        stopping[stop].append(process)
    holders: Counter[int] = Counter()
    for start, stop in pairwise(sorted({0, size, *starting, *stopping})):
        holders.update(starting[start])
        holders.subtract(stopping[start])
        yield start, stop, sorted(+holders)


class SavePieces(SavePlanner):
    """Each value is written by the process, of those that hold it, with least to write so far."""

    def set_up_planner(
        self,
        state_dict: dict[str, Pieces],
        storage_meta: StorageMeta | None = None,  # noqa: ARG002
        is_coordinator: bool = False,  # noqa: ARG002
    ) -> None:
        """Takes the tensors that are to be saved."""
        self.tensors = state_dict

    def create_local_plan(self) -> SavePlan:
        """What this process holds; process 0 decides what of it is written here."""
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
                (*interval, process)
                for process, each in enumerate(every)
                if (holding := each.get(name)) is not None
                for interval in holding.intervals
            ]
            for start, stop, holders in segments(whole.size, held):
                if not holders:
                    raise CheckpointError(f"{name}: no process holds values {start} to {stop - 1}")
                writer = min(holders, key=planned.__getitem__)
                planned[writer] += (stop - start) * whole.dtype.itemsize
                items[writer].append(_write_item(name, whole, start, stop))
        return create_default_global_save_plan([SavePlan(each) for each in items])

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Nothing is left to decide."""
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        """The values of an item of the plan."""
        data: Any = write_item.tensor_data
        [start], [length] = data.chunk.offsets, data.chunk.sizes
        return self.tensors[write_item.index.fqn].view(start, start + length)


def chunk_of(start: int, length: int) -> ChunkStorageMetadata:
    """An interval in torch's words."""
    return ChunkStorageMetadata(torch.Size([start]), torch.Size([length]))


def _write_item(name: str, whole: Whole, start: int, stop: int) -> WriteItem:
    chunk = chunk_of(start, stop - start)
    properties = TensorProperties(dtype=whole.dtype)
    return WriteItem(
        MetadataIndex(name, chunk.offsets),
        WriteItemType.SHARD,
        tensor_data=TensorWriteData(chunk, properties, torch.Size([whole.size])),
    )


class LoadPieces(LoadPlanner):
    """Every piece of this process is filled, whichever stored pieces its values are in."""

    def set_up_planner(
        self,
        state_dict: dict[str, Pieces],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,  # noqa: ARG002
    ) -> None:
        """Takes the tensors to read into, and what is stored."""
        self.destinations = {
            name: [(offset, values.detach()) for offset, values in pieces.nonempty()]
            for name, pieces in state_dict.items()
        }
        self.metadata: Any = metadata

    def create_local_plan(self) -> LoadPlan:
        """Where the stored pieces and those here overlap."""
        items: list[ReadItem] = []
        for name, pieces in self.destinations.items():
            chunks = [chunk_of(offset, len(values)) for offset, values in pieces]
            stored = self.metadata.state_dict_metadata[name]
            items += create_read_items_for_chunk_list(name, stored, chunks)
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Each process reads for itself."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """Nothing is left to decide."""
        return central_plan

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """The part of a piece that an item of the plan fills."""
        # By number: two replicas' pieces can start at the same value.
        number: Any = read_item.dest_index.index
        _, piece = self.destinations[read_item.dest_index.fqn][number]
        part: torch.Tensor = piece.narrow(0, *read_item.dest_offsets, *read_item.lengths)
        return part

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:  # noqa: ARG002
        """Never: torch's planner would unpickle what is not a tensor."""
        raise CheckpointError(f"{read_item.dest_index.fqn}: not a tensor")

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Nothing: the values are in place."""

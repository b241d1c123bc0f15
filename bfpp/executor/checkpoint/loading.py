"""Loading: everything that can be wrong is looked for before the first value is written."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from bfpp.executor.checkpoint.boxes import Box, boxes_of
from bfpp.executor.checkpoint.manifest import (
    Extent,
    Manifest,
    StoredFile,
    StoredTensor,
    read_manifest,
    require_plain,
)
from bfpp.executor.checkpoint.pieces import Holdings, TensorPieces, holdings, part
from bfpp.executor.checkpoint.planning import LoadPieces, agreed, chunk_of, chunks_of, one_failure
from bfpp.executor.checkpoint.processes import CheckpointError, Processes


def load(
    path: Path,
    tensors: Mapping[str, TensorPieces],
    group: dist.ProcessGroup | None,
    verify: bool = True,
) -> None:
    """Reads a checkpoint's values into the views that `tensors` has, wherever they were cut.

    Every process of the group calls it, each with its own pieces; with no group,
    this process loads alone. The names are those of all processes together.

    Raises `CheckpointError`, in every process, if the checkpoint is damaged in any
    way or is of another model; the views are as they were, unless `verify` is
    off (which leaves the checksums of the data unread) or a forged file passes it.
    """
    processes = Processes(group, path)
    manifest = processes.first(lambda: read_manifest(path))
    processes.together(lambda: _check_files(path, manifest, processes, verify))
    every = processes.together(lambda: holdings(tensors))
    _check_model(path, manifest, every)
    reader = Reader(path, manifest.tensors, tensors)
    with processes.one_line_errors(), one_failure(path):
        state_dict_loader.load(
            dict(tensors),
            storage_reader=reader,
            planner=LoadPieces(reader.columns),
            process_group=group,
            no_dist=group is None,
        )


def _check_files(path: Path, manifest: Manifest, processes: Processes, verify: bool) -> None:
    """Check that the files are unchanged; each process checks its share of them."""
    for name in sorted(manifest.files)[processes.rank :: processes.size]:
        file, stored = path / name, manifest.files[name]
        require_plain(file)
        length = file.stat().st_size
        if length != stored.length:
            raise CheckpointError(f"{file}: {length} bytes, but {stored.length} were saved")
        if verify and StoredFile.of(file) != stored:
            raise CheckpointError(f"{file}: damaged: its SHA-256 is not that of what was saved")


def _check_model(path: Path, manifest: Manifest, every: Sequence[Holdings]) -> None:
    """The names, sizes and dtypes are those of the model's tensors."""
    names = {name for each in every for name in each}
    if unknown := names - manifest.tensors.keys():
        raise CheckpointError(f"{path}: has no {some(unknown)}, which the model has")
    if unused := manifest.tensors.keys() - names:
        raise CheckpointError(f"{path}: has {some(unused)}, which the model has not")
    for name in sorted(names):
        stored, wanted = manifest.tensors[name], agreed(name, every)
        if wanted is None:
            continue
        if (wanted.size, wanted.dtype) != (stored.size, stored.dtype):
            raise CheckpointError(
                f"{path}: {name} has {stored.size} values of {stored.dtype}, "
                f"but {wanted.size} of {wanted.dtype} in the model"
            )
        is_flat = 1 in (len(stored.shape), len(wanted.shape))
        if manifest.has_shapes and not is_flat and wanted.shape != stored.shape:
            raise CheckpointError(
                f"{path}: {name} has shape {[*stored.shape]}, but {[*wanted.shape]} in the model"
            )


def some(names: set[str]) -> str:
    """The first of some names, and how many more there are."""
    first, *others = sorted(names)
    return f"{first} (and {len(others)} more)" if others else first


class Cut(NamedTuple):
    """A box that values of an extent make up, from its value number `first` on."""

    extent: Extent
    first: int
    box: Box

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """Its part of the extent's values."""
        own = values.flatten()[self.first : self.first + self.box.size]
        return own.view(self.box.rows, self.box.columns)


def _cuts(stored: StoredTensor, columns: int) -> list[Cut]:
    """The stored boxes, in rows of `columns` values: those of others are intervals, row by row."""
    if stored.columns == columns:
        return [Cut(extent, 0, extent.box) for extent in stored.extents]
    return [
        Cut(extent, before + first, box)
        for extent in stored.extents
        for before, begin, length in _intervals(extent.box, stored.columns)
        for first, box in boxes_of(begin, length, columns)
    ]


def _intervals(box: Box, columns: int) -> Iterator[tuple[int, int, int]]:
    """The intervals of a tensor's values in a box: values before each, its begin and length."""
    if box.columns == columns:
        yield 0, box.row * columns, box.size
        return
    for number in range(box.rows):
        begin = (box.row + number) * columns + box.column
        yield number * box.columns, begin, box.columns


class Reader(FileSystemReader):
    """Torch's reader, but it follows the manifest and reads each promised value once."""

    def __init__(
        self, path: Path, stored: Mapping[str, StoredTensor], wanted: Mapping[str, TensorPieces]
    ) -> None:
        super().__init__(path)
        self.directory = path
        self.tensors = stored
        self.columns = {
            name: stored[name].columns if pieces.row is None else pieces.columns
            for name, pieces in wanted.items()
        }
        self.cuts = {name: _cuts(stored[name], each) for name, each in self.columns.items()}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002
        """The manifest in torch's words, instead of the pickle, in the rows that are read."""
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(dtype=self.tensors[name].dtype),
                    torch.Size([self.tensors[name].size // columns, columns]),
                    [chunk_of(cut.box) for cut in self.cuts[name]],
                )
                for name, columns in self.columns.items()
            },
            storage_data={},
        )

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads each extent that is needed, and copies it to wherever it is."""
        for extent, name, copies in self._by_extent(plan):
            values = self._values(extent, name)
            for cut, item in copies:
                stored = part(cut.of(values), *item.storage_offsets, *item.lengths)
                planner.resolve_tensor(item).copy_(stored)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _by_extent(self, plan: LoadPlan) -> list[tuple[Extent, str, list[tuple[Cut, ReadItem]]]]:
        """The reads in the files' order, each with the tensor's name and the copies to make."""
        copies: dict[tuple[str, Extent], list[tuple[Cut, ReadItem]]] = defaultdict(list)
        for item in plan.items:
            name, number = item.storage_index.fqn, item.storage_index.index
            cut = self.cuts[name][number or 0]
            copies[name, cut.extent].append((cut, item))
        reads = [(extent, name, items) for (name, extent), items in copies.items()]
        return sorted(reads, key=lambda each: (each[0].file, each[0].start))

    def _values(self, extent: Extent, name: str) -> torch.Tensor:
        file = self.directory / extent.file
        with file.open("rb") as stream:
            stream.seek(extent.start)
            stored = io.BytesIO(stream.read(extent.length))
        # Checkpoints come from others, too: a pickle of tensors alone runs no code of theirs.
        try:
            values: torch.Tensor = torch.load(stored, map_location="cpu", weights_only=True)
        except Exception as error:
            reason = f"the values of {name} cannot be read ({type(error).__name__})"
            raise CheckpointError(f"{file}: {reason}") from error
        tensor = self.tensors[name]
        block, *_ = chunks_of(extent.box, tensor.shape)
        if not _is_plain(values, tensor.dtype, block.sizes):
            raise CheckpointError(f"{file}: not the values of {name} that its manifest promises")
        return values


def _is_plain(values: Any, dtype: torch.dtype, shape: torch.Size) -> bool:
    """Test for an ordinary tensor of the right kind."""
    return (
        type(values) is torch.Tensor
        and values.layout is torch.strided
        and values.device.type == "cpu"
        and values.dtype is dtype
        and values.shape == shape
    )

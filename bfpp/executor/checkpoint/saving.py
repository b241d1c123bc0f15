"""Saving: written aside by all processes, made sure of, then published by process 0."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from bfpp.executor.checkpoint.directory import Retention, begin, discard_old, publish, to_disk
from bfpp.executor.checkpoint.manifest import (
    MANIFEST,
    METADATA_FILE,
    Extent,
    Manifest,
    StoredFile,
    StoredTensor,
    plain_settings,
    write_manifest,
)
from bfpp.executor.checkpoint.pieces import TensorPieces
from bfpp.executor.checkpoint.planning import SavePieces, box_of, one_failure
from bfpp.executor.checkpoint.processes import CheckpointError, Processes, one_line


class Writer(FileSystemWriter):
    """Torch's writer, except that it reports why it failed, and records no path of the files."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.directory = path

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this process's part of the values."""
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            # A full disk makes torch's archives fail in other words, in their closing.
            raise one_line(error, self.directory) from error

    def storage_meta(self) -> StorageMeta:
        """Torch's storage metadata."""
        return StorageMeta(save_id=self.save_id)


def save(
    directory: Path,
    step: int,
    tensors: Mapping[str, TensorPieces],
    settings: Mapping[str, Any],
    group: dist.ProcessGroup | None,
    keep: int | Retention = 2,
) -> Path:
    """Saves a checkpoint of all the group's tensors, and returns where it is.

    Every process of the group calls it, each with its own pieces; together they
    hold every value of every tensor. With no group, this process saves alone.
    `settings` are anything that JSON can hold, those of process 0 count. The last
    `keep` checkpoints stay, this one included, or what a `Retention` says.

    Raises `CheckpointError`, in every process, if anything went wrong in any; the
    checkpoints that there were are then still there.
    """
    retention = keep if isinstance(keep, Retention) else Retention(keep)
    if step < 0 or retention.last < 1:
        raise ValueError(f"step {step} and keep {retention.last}: at least 0 and 1 are needed")
    processes = Processes(group, directory)
    plain = processes.first(lambda: plain_settings(settings))
    unfinished = directory / processes.first(lambda: begin(directory).name)
    try:
        metadata = _write_values(unfinished, tensors, processes)
        written = processes.together(lambda: _written_here(unfinished, processes.rank))
        files = {name: file for each in written for name, file in each.items()}
        manifest = Manifest(step, plain, files, _stored_tensors(metadata))
        name = processes.first(lambda: _finish(unfinished, manifest, retention).name)
    except CheckpointError:
        if processes.rank == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
        raise
    processes.first(lambda: discard_old(directory, retention))
    return directory / name


def _write_values(
    unfinished: Path, tensors: Mapping[str, TensorPieces], processes: Processes
) -> Metadata:
    with processes.one_line_errors(), one_failure(processes.path):
        metadata: Metadata = state_dict_saver.save(
            dict(tensors),
            storage_writer=Writer(unfinished),
            planner=SavePieces(),
            process_group=processes.group,
            no_dist=processes.group is None,
        )
    return metadata


def _written_here(unfinished: Path, rank: int) -> dict[str, StoredFile]:
    """The files that this process wrote, by name."""
    paths = list(unfinished.glob(f"__{rank}_*"))
    if rank == 0:
        paths.append(unfinished / METADATA_FILE)
        # Torch asks the system for this before it hands it the last bytes.
        to_disk(unfinished / METADATA_FILE)
    return {path.name: StoredFile.of(path) for path in paths}


def _finish(unfinished: Path, manifest: Manifest, retention: Retention) -> Path:
    for name in manifest.files:
        if not (unfinished / name).exists():
            reason = "was written where process 0 does not see it: hosts must share the directory"
            raise CheckpointError(f"{unfinished / name}: {reason}")
    write_manifest(unfinished, manifest)
    to_disk(unfinished / MANIFEST)
    return publish(unfinished, manifest.step, retention.abandoned)


def _stored_tensors(metadata: Metadata) -> dict[str, StoredTensor]:
    """The file and offset of each tensor that torch wrote."""
    tensors = {}
    stored: Mapping[str, Any] = metadata.state_dict_metadata
    for name, whole in stored.items():
        extents = []
        for chunk in sorted(whole.chunks, key=lambda chunk: chunk.offsets):
            place = metadata.storage_data[MetadataIndex(name, chunk.offsets)]
            box = box_of(chunk, whole.size)
            extents.append(Extent(box, place.relative_path, place.offset, place.length))
        tensors[name] = StoredTensor(whole.properties.dtype, tuple(whole.size), tuple(extents))
    return tensors

"""A `state_dict()` that torch.distributed.checkpoint saved, as torchtitan does, to begin with.

Tensors have their names in the model, or those below `model` (`dcp.save({"model": ...})`), and lie
in the files as whoever saved them had divided them. Of the other state that lies there (of an
optimizer, say) nothing is read, and no pickle runs code: `.metadata` may name torch's own records
alone, and values are read as plain tensors.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import filesystem, metadata, state_dict_loader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from bfpp.executor.checkpoint.loading import some
from bfpp.executor.checkpoint.manifest import METADATA_FILE
from bfpp.executor.checkpoint.planning import one_failure
from bfpp.executor.checkpoint.processes import Processes
from bfpp.schedules import InvalidConfiguration

MODEL = "model."
"""Prefix of names that were saved below `model`."""

OTHER_STATE = ("optimizer.", "lr_scheduler.", "dataloader.", "train_state.")
"""Prefixes of what torchtitan saves beside weights without a prefix."""

TensorNames = tuple[str, ...]
"""The names that a tensor may be stored by: the first one that is there counts."""


@dataclass(frozen=True)
class StateDict:
    """The tensors of a directory that torch.distributed.checkpoint wrote."""

    directory: Path

    def require(
        self,
        needed: Mapping[TensorNames, Tensor],
        others: Mapping[TensorNames, Tensor],
        known: set[str],
    ) -> None:
        """Raise `InvalidConfiguration` unless it has what is needed, in their shapes.

        So have `others` that are there, and nothing is there but what is `known`.
        """
        if missing := {names[0] for names in needed if self._place(names) is None}:
            self._refuse(f"has no {some(missing)}, which the model has")
        stored = {*self._stored}
        if below := {name for name in known if MODEL + name in stored and name not in stored}:
            stored = {name.removeprefix(MODEL) for name in stored if name.startswith(MODEL)}
        # Moments in checkpoints of ours have a space in their names.
        unknown = {name for name in stored - known if " " not in name}
        if unknown := {each for each in unknown if below or not each.startswith(OTHER_STATE)}:
            self._refuse(f"has {some(unknown)}, which the model has not")
        for names, tensor in chain(needed.items(), others.items()):
            if (place := self._place(names)) is not None:
                self._require_alike(place, tensor)

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        """The shapes of the tensors that are there, by their names in the model."""
        names = {name for name in self._stored if not name.startswith(OTHER_STATE)}
        return {name.removeprefix(MODEL): self._stored[name].size for name in names}

    def read(self, name: str) -> Tensor:
        """A tensor that is there, in its own precision."""
        place = self._place((name,))
        assert place is not None  # noqa: S101
        values = torch.empty(self.shapes[name], dtype=self._stored[place].properties.dtype)
        self.fill({(name,): values})
        return values

    def _require_alike(self, name: str, tensor: Tensor) -> None:
        stored = self._stored[name]
        if stored.size != tensor.shape:
            shapes = f"shape {[*stored.size]}, but {[*tensor.shape]} in the model"
            self._refuse(f"has {name} in {shapes}")
        if sum(prod(chunk.sizes) for chunk in stored.chunks) < tensor.numel():
            self._refuse(f"has not all values of {name}")

    def fill(self, tensors: Mapping[TensorNames, Tensor]) -> None:
        """Read the values of the tensors that are there, from whichever pieces they are in.

        Parameters then have the precision that they are stored in, if it is more than the model's.
        On the meta device nothing is read, but it takes as much memory.
        """
        values: dict[str, Tensor] = {}
        for names, tensor in tensors.items():
            if (place := self._place(names)) is not None:
                own = tensor.data
                dtype = torch.promote_types(own.dtype, self._stored[place].properties.dtype)
                if isinstance(tensor, nn.Parameter) and dtype is not own.dtype:
                    tensor.data = own = torch.empty_like(own, dtype=dtype)
                values[place] = own
        if any(value.is_meta for value in values.values()):
            self._outline(values)
            return
        if not values:
            return
        with Processes(None, self.directory).one_line_errors(), one_failure(self.directory):
            state_dict_loader.load(
                values,
                storage_reader=StateDictReader(self.directory, self._metadata),
                planner=DefaultLoadPlanner(),
                no_dist=True,
            )

    def _outline(self, places: Iterable[str]) -> None:
        """Take as much memory as it takes to read: a piece, while the one before is still there."""
        piece = None
        for stored in map(self._stored.__getitem__, places):
            for chunk in stored.chunks:
                dtype, size = stored.properties.dtype, prod(chunk.sizes)
                piece = torch.empty(size, dtype=dtype, device="meta")
        del piece

    def _place(self, names: TensorNames) -> str | None:
        """The name that a tensor is stored by."""
        places = (prefix + name for name in names for prefix in ("", MODEL))
        return next((place for place in places if place in self._stored), None)

    @cached_property
    def _stored(self) -> Mapping[str, TensorStorageMetadata]:
        """The stored tensors, by name."""
        entries = self._metadata.state_dict_metadata.items()
        return {name: each for name, each in entries if isinstance(each, TensorStorageMetadata)}

    @cached_property
    def _metadata(self) -> Metadata:
        file = self.directory / METADATA_FILE
        try:
            with file.open("rb") as stream:
                found = _RecordsOnly(stream).load()
        except OSError as error:
            self._refuse(f"cannot be read: {error.strerror}")
        except Exception as error:  # a pickle may fail with any
            self._refuse(f"has no {METADATA_FILE} of torch.distributed.checkpoint: {error}")
        if not isinstance(found, Metadata):
            self._refuse(f"has no {METADATA_FILE} of torch.distributed.checkpoint")
        return found

    def _refuse(self, reason: str) -> NoReturn:
        raise InvalidConfiguration("weights", f"'{self.directory}' {reason}")


class StateDictReader(FileSystemReader):
    """Torch's reader, with metadata that was read before."""

    def __init__(self, directory: Path, stored: Metadata) -> None:
        super().__init__(directory)
        self.stored = stored

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:  # noqa: ARG002
        """The metadata."""
        return self.stored


class _RecordsOnly(pickle.Unpickler):
    """Reads torch's records, dtypes and paths alone, so that no pickle runs code."""

    def find_class(self, module: str, name: str) -> Any:
        """The record of that name; raises `UnpicklingError` for anything else."""
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or (module, name) in PLAIN:
            return super().find_class(module, name)
        record = vars(metadata).get(name) if module == metadata.__name__ else None
        if isinstance(record, type) and record.__module__ == module:
            return record
        raise pickle.UnpicklingError(f"it names {module}.{name}")


PLAIN = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    (filesystem.__name__, "_StorageInfo"),
    ("collections", "OrderedDict"),
    *(("pathlib", each) for each in ("Path", "PosixPath", "PurePosixPath", "WindowsPath")),
}
"""Other names in torch's metadata: of shapes, layouts, places and paths."""

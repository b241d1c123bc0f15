"""Weights of our transformer as Hugging Face's Llama, Mistral and Qwen have them.

A model is a directory with `config.json` and safetensors files: one, or several with an index.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bfpp.executor.checkpoint.loading import some
from bfpp.executor.checkpoint.manifest import METADATA_FILE
from bfpp.executor.model.transformer.names import HUGGING_FACE, WeightNames
from bfpp.executor.model.transformer.stored_weights import ExportedWeights, StoredWeights
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.reading import NotJson, parsed, read_file

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

KINDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
}
"""The names of precisions in safetensors files."""

ALIGNED = 8
"""The values in a safetensors file begin at a multiple of this many bytes."""


@dataclass(frozen=True)
class Weights(StoredWeights):
    """The safetensors of a directory, or of one file, for a transformer of some sizes."""

    @property
    def form(self) -> WeightNames:
        """Hugging Face's."""
        return HUGGING_FACE

    @property
    def names(self) -> Collection[str]:
        """The tensors that are there."""
        return self._files.keys()

    @cached_property
    def _files(self) -> Mapping[str, Path]:
        """The file of each tensor."""
        is_file = self.directory.is_file()
        file = self.directory if is_file else self.directory / WEIGHTS
        index = self.directory / INDEX
        if index.exists() and not file.exists():
            return {name: self.directory / part for name, part in _weight_map(index).items()}
        if not is_file and not file.exists():
            lies_there = _what_lies_in(self.directory)
            raise InvalidConfiguration("weights", f"'{file}' cannot be read: {lies_there}")
        with self._opened(file) as stored:
            return dict.fromkeys(stored.keys(), file)

    @contextmanager
    def _opened(self, file: Path) -> Iterator[Any]:
        try:
            with safe_open(file, "pt") as stored:
                yield stored
        except (OSError, SafetensorError) as error:
            raise InvalidConfiguration("weights", f"'{file}' cannot be read: {error}") from error

    @contextmanager
    def _stored(self, name: str) -> Iterator[tuple[Any, str]]:
        """The file of a tensor, and its name there."""
        place = self.place(name)
        with self._opened(self._files[place]) as file:
            yield file, place

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor that is there; raises `InvalidConfiguration` for another."""
        with self._stored(name) as (file, own):
            return tuple(file.get_slice(own).get_shape())

    def tensor(self, name: str) -> Tensor:
        """A tensor in the file, which is mapped to memory."""
        with self._stored(name) as (file, own):
            tensor: Tensor = file.get_tensor(own)
        return tensor


def _what_lies_in(directory: Path) -> str:
    """The checkpoints inside a directory that is none itself, or else what is there."""
    try:
        inside = {each.name: each for each in directory.iterdir()}
    except OSError as error:
        return f"{error.strerror}: '{directory}'"
    marks = (WEIGHTS, INDEX, METADATA_FILE)
    checkpoints = {
        name for name, each in inside.items() if any((each / mark).exists() for mark in marks)
    }
    if checkpoints:
        return f"it is not there, and these checkpoints are: {some(checkpoints)}; name one of them"
    there = f"there is {some(set(inside))}" if inside else "the folder is empty"
    return f"neither it nor {INDEX} nor {METADATA_FILE} is there; {there}"


def _weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor: one of the index's own folder, whatever it is a link to."""
    try:
        record = parsed(read_file(index))
    except (OSError, NotJson) as error:
        raise InvalidConfiguration("weights", f"'{index}' cannot be read: {error}") from error
    names = record.get("weight_map") if isinstance(record, dict) else None
    if not isinstance(names, dict) or not all(isinstance(part, str) for part in names.values()):
        raise InvalidConfiguration("weights", f"'{index}' has no weight_map from names to files")
    for part in names.values():
        if part in ("", "..") or part != Path(part).name or not part.isprintable():
            raise InvalidConfiguration("weights", f"'{index}': {part!r} is no file of its folder")
    return names


@dataclass(frozen=True)
class WeightExport(ExportedWeights):
    """The weights in a checkpoint of our transformer, for a safetensors file of theirs."""

    form: WeightNames = HUGGING_FACE

    def write(self, place: Path) -> None:
        """Write the file: a header with the place of each tensor, and then their values."""
        header: dict[str, Any] = {"__metadata__": {"format": "pt", "generator": "bfpp"}}
        kind, end = KINDS[self.dtype], 0
        for name, shape in self.shapes.items():
            begin, end = end, end + shape.numel() * self.dtype.itemsize
            header[name] = {"dtype": kind, "shape": [*shape], "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGNED)
        with place.open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for layer in self.layers:
                for _, value in self.theirs(layer, self.values(layer)):
                    out.write(value.to(self.dtype).contiguous().view(torch.uint8).numpy().data)

"""`manifest.json`: the contents of a checkpoint, their places, and checksums of all files.

It is read as what a stranger may have written: nothing in it is trusted to be of
the right type, to name a file of this directory, or to cover a tensor.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bfpp.executor.checkpoint.boxes import Box, shared
from bfpp.executor.checkpoint.pieces import DTYPES, WithShape, matrix_of
from bfpp.executor.checkpoint.processes import CheckpointError

MANIFEST = "manifest.json"
FORMAT = 3
ROWS_FORMAT = 2
"""Earlier checkpoints are of this format: a tensor's shape is rows and columns, often one row."""
FLAT_FORMAT = 1
"""The earliest are of this one: all tensors are flat, and extents intervals."""
DATA_FILE = re.compile(r"__[0-9]+_[0-9]+\.distcp")
METADATA_FILE = ".metadata"


@dataclass(frozen=True)
class StoredFile:
    """A file's length in bytes, and its SHA-256 in hexadecimal."""

    length: int
    sha256: str

    @staticmethod
    def of(path: Path) -> StoredFile:
        """The file as it is now."""
        with path.open("rb") as file:
            return StoredFile(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True)
class Extent:
    """A box of a tensor: `length` bytes from `start` of a file."""

    box: Box
    file: str
    start: int
    length: int


@dataclass(frozen=True)
class StoredTensor(WithShape):
    """A tensor's dtype and shape, and where its values are, each once, as boxes of its rows."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    extents: tuple[Extent, ...]


@dataclass(frozen=True)
class Manifest:
    """A checkpoint, except for the values; tensors of earlier formats have not their own shapes."""

    step: int
    settings: dict[str, Any]
    files: Mapping[str, StoredFile]
    tensors: Mapping[str, StoredTensor]
    has_shapes: bool = True


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they will be read again. Raises `CheckpointError` if JSON cannot hold them."""
    try:
        return dict(json.loads(_canonical(dict(settings))))
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"the settings: {error}") from error


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Writes a checkpoint's manifest, whose settings are plain."""
    content = {
        "format": FORMAT,
        "step": manifest.step,
        "settings": manifest.settings,
        "files": {name: asdict(file) for name, file in manifest.files.items()},
        "tensors": {
            name: {
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": [*tensor.shape],
                "extents": [
                    [*extent.box, extent.file, extent.start, extent.length]
                    for extent in tensor.extents
                ],
            }
            for name, tensor in manifest.tensors.items()
        },
    }
    (path / MANIFEST).write_text(sealed(content))


def sealed(content: Any) -> str:
    """The text of a manifest: its content, with the checksum of that."""
    text = _canonical(content)
    return f'{{"sha256": "{_checksum(text)}", "content": {text}}}\n'


def read_manifest(path: Path) -> Manifest:
    """Reads a checkpoint's manifest. Raises `CheckpointError` unless it is in order."""
    file = path / MANIFEST
    try:
        require_plain(file)
        outer = json.loads(file.read_bytes())
        content = outer["content"]
        _require(_checksum(_canonical(content)) == outer["sha256"], "its checksum is wrong")
        return _parsed(content)
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror}") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{file}: damaged, or no manifest: {reason}") from error


def read_settings(path: Path) -> dict[str, Any]:
    """The settings that a checkpoint was saved with. Raises `CheckpointError`."""
    return read_manifest(path).settings


def require_plain(file: Path) -> None:
    """Raises `CheckpointError` for a link, a pipe or a device: none is part of a checkpoint."""
    if not stat.S_ISREG(file.lstat().st_mode):
        raise CheckpointError(f"{file}: not a regular file")


def _canonical(content: Any) -> str:
    """Canonical JSON: the same content is the same text, so a parsed manifest can be checked."""
    return json.dumps(content, sort_keys=True, allow_nan=False)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise ValueError(reason)


def _count(value: Any) -> int:
    _require(type(value) is int and value >= 0, f"{value!r} is not a count")
    return int(value)


def _parsed(content: Any) -> Manifest:
    _require(content["format"] in TENSORS, f"its format is none of {[*TENSORS]}")
    tensor_of = TENSORS[content["format"]]
    _require(isinstance(content["settings"], dict), "its settings are not an object")
    files = {
        _file_name(name): StoredFile(_count(file["length"]), str(file["sha256"]))
        for name, file in content["files"].items()
    }
    tensors = {name: tensor_of(name, value, files) for name, value in content["tensors"].items()}
    has_shapes = content["format"] == FORMAT
    return Manifest(_count(content["step"]), content["settings"], files, tensors, has_shapes)


def _file_name(name: str) -> str:
    """A file's name, which cannot lead out of the checkpoint."""
    known = name == METADATA_FILE or DATA_FILE.fullmatch(name)
    _require(bool(known), f"{name!r} is not a file of a checkpoint")
    return name


def _tensor(name: str, value: Any, files: Mapping[str, StoredFile]) -> StoredTensor:
    shape = tuple(map(_count, value["shape"]))
    rows, columns = matrix_of(shape)
    extents = tuple(
        Extent(Box(*map(_count, box)), _file_name(file), _count(start), _count(length))
        for *box, file, start, length in value["extents"]
    )
    boxes = [each.box for each in extents]
    _require(bool(boxes) and all(each.size for each in boxes), f"{name} has an empty piece")
    _require(
        all(Box(0, 0, rows, columns).covers(each) for each in boxes), f"{name} has more than it is"
    )
    holders = [
        each for _, each in shared(rows, columns, zip(boxes, range(len(boxes)), strict=True))
    ]
    _require(all(len(each) == 1 for each in holders), f"{name} has a gap, or values twice")
    _require(
        all(each.start + each.length <= files[each.file].length for each in extents),
        f"{name} is said to lie outside its file",
    )
    return StoredTensor(DTYPES[value["dtype"]], shape, extents)


def _tensor_of_rows(name: str, value: Any, files: Mapping[str, StoredFile]) -> StoredTensor:
    """A tensor of the format of rows: what has one of them is flat."""
    rows, columns = value["shape"]
    return _tensor(name, {**value, "shape": [columns] if rows == 1 else [rows, columns]}, files)


def _flat_tensor(name: str, value: Any, files: Mapping[str, StoredFile]) -> StoredTensor:
    """A tensor of the flat format: its extents have an offset and a size."""
    extents = [[0, offset, 1, size, *place] for offset, size, *place in value["extents"]]
    shape = [sum(_count(extent[3]) for extent in extents)]
    return _tensor(name, {**value, "shape": shape, "extents": extents}, files)


TENSORS = {FLAT_FORMAT: _flat_tensor, ROWS_FORMAT: _tensor_of_rows, FORMAT: _tensor}
"""Readers of a tensor by the manifest's format."""

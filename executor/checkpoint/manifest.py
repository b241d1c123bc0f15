"""`manifest.json`: what a checkpoint holds and where, with checksums of it all.

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
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from bfpp.executor.checkpoint.pieces import DTYPES
from bfpp.executor.checkpoint.processes import CheckpointError

MANIFEST = "manifest.json"
FORMAT = 1
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
    """Values `offset` to `offset + size` of a tensor: `length` bytes from `start` of a file."""

    offset: int
    size: int
    file: str
    start: int
    length: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor's dtype, and where its values are, in order and without a gap."""

    dtype: torch.dtype
    extents: tuple[Extent, ...]

    @property
    def size(self) -> int:
        """The number of its values."""
        return self.extents[-1].offset + self.extents[-1].size


@dataclass(frozen=True)
class Manifest:
    """A checkpoint, but for the values."""

    step: int
    settings: dict[str, Any]
    files: Mapping[str, StoredFile]
    tensors: Mapping[str, StoredTensor]


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
                "extents": [list(asdict(extent).values()) for extent in tensor.extents],
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
    """The same content is the same text, so what is parsed can be checked."""
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
    _require(content["format"] == FORMAT, f"its format is not {FORMAT}")
    _require(isinstance(content["settings"], dict), "its settings are not an object")
    files = {
        _file_name(name): StoredFile(_count(file["length"]), str(file["sha256"]))
        for name, file in content["files"].items()
    }
    tensors = {name: _tensor(name, value, files) for name, value in content["tensors"].items()}
    return Manifest(_count(content["step"]), content["settings"], files, tensors)


def _file_name(name: str) -> str:
    """A file's name, which cannot lead out of the checkpoint."""
    known = name == METADATA_FILE or DATA_FILE.fullmatch(name)
    _require(bool(known), f"{name!r} is not a file of a checkpoint")
    return name


def _tensor(name: str, value: Any, files: Mapping[str, StoredFile]) -> StoredTensor:
    extents = tuple(
        Extent(_count(offset), _count(size), _file_name(file), _count(start), _count(length))
        for offset, size, file, start, length in value["extents"]
    )
    _require(bool(extents) and extents[0].offset == 0, f"{name} does not begin")
    _require(all(each.size for each in extents), f"{name} has an empty piece")
    _require(
        all(each.offset + each.size == after.offset for each, after in pairwise(extents)),
        f"{name} has a gap, or values twice",
    )
    _require(
        all(each.start + each.length <= files[each.file].length for each in extents),
        f"{name} is said to lie outside its file",
    )
    return StoredTensor(DTYPES[value["dtype"]], extents)

"""Damaged and forged checkpoints: one line that names the file, and nothing executed or loaded.

Damage is what a disk or a hasty copy does; `forge` also repairs the checksums, as
somebody would who wants code to run where the checkpoint is loaded.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from bfpp.executor.checkpoint import CheckpointError, TensorPieces, load, read_manifest, save
from bfpp.executor.checkpoint.manifest import StoredFile, sealed
from tests.helpers.checkpoint_states import cut, empty_state, loaded_step, state_of, whole

DATA = "__0_0.distcp"
FILES = (DATA, ".metadata", "manifest.json")


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, crater: Path) -> None:
        self.crater = crater

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.crater,)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"learning_rate": 0.1, "name": "a model"}
    return save(tmp_path_factory.mktemp("saved"), 3, whole(state_of(3)), settings, None)


@pytest.fixture
def path(saved: Path, tmp_path: Path) -> Path:
    """A checkpoint to do harm to."""
    return shutil.copytree(saved, tmp_path / "copy")


def forge(path: Path, edit: Callable[[Any], Any] = bool) -> None:
    """Makes the manifest vouch for the files as they are, and says other things in it."""
    content = json.loads((path / "manifest.json").read_text())["content"]
    for name in content["files"]:
        content["files"][name] = asdict(StoredFile.of(path / name))
    edit(content)
    (path / "manifest.json").write_text(sealed(content))


def refused(path: Path, file: str, verify: bool = True) -> str:
    """Why a checkpoint is not loaded, having seen that nothing of it is."""
    state = empty_state()
    with pytest.raises(CheckpointError) as error:
        load(path, whole(state), None, verify)
    assert not any(values.any() for values in state.values())
    reason = str(error.value)
    assert reason.startswith(f"{path / file}: ")
    assert "\n" not in reason
    return reason


# Damage


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_truncated_file_is_refused(path: Path, file: str, share: float) -> None:
    os.truncate(path / file, int(share * (path / file).stat().st_size))
    refused(path, file)


@pytest.mark.parametrize("file", FILES)
def test_a_longer_file_is_refused(path: Path, file: str) -> None:
    with (path / file).open("ab") as stream:
        stream.write(b"more")
    refused(path, file)


@pytest.mark.parametrize("file", [DATA, ".metadata"])
@pytest.mark.parametrize("share", [0, 0.1, 0.37, 0.5, 0.81, 0.9999])
def test_a_flipped_bit_is_refused(path: Path, file: str, share: float) -> None:
    data = bytearray((path / file).read_bytes())
    data[int(share * len(data))] ^= 4
    (path / file).write_bytes(data)
    assert "damaged" in refused(path, file)


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_of_the_manifest_is_refused(path: Path, bit: int) -> None:
    file = path / "manifest.json"
    original, good = read_manifest(path), file.read_bytes()
    for place in range(bit, len(good), 8):
        data = bytearray(good)
        data[place] ^= 1 << bit
        file.write_bytes(data)
        with suppress(CheckpointError):
            assert read_manifest(path) == original, "other white space at most"


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named(path: Path, file: str) -> None:
    (path / file).unlink()
    assert refused(path, file).endswith(": No such file or directory")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("other")])
def test_what_is_not_a_file_is_refused(path: Path, file: str, make: Callable[[Path], None]) -> None:
    shutil.copyfile(path / file, path / "other")
    (path / file).unlink()
    make(path / file)
    assert refused(path, file).endswith(": not a regular file")


@pytest.mark.parametrize("share", [0.3, 0.99])
def test_without_verification_a_truncated_file_is_still_refused(path: Path, share: float) -> None:
    os.truncate(path / DATA, int(share * (path / DATA).stat().st_size))
    refused(path, DATA, verify=False)


def test_without_verification_checksums_are_not_read(path: Path) -> None:
    data = bytearray((path / ".metadata").read_bytes())
    data[9] ^= 1
    (path / ".metadata").write_bytes(data)
    refused(path, ".metadata")
    load(path, whole(empty_state()), None, verify=False)


# Forgery


@pytest.mark.parametrize("file", FILES)
def test_a_pickle_in_the_place_of_a_file_is_not_executed(path: Path, file: str) -> None:
    crater = path / "crater"
    (path / file).write_bytes(pickle.dumps(Bomb(crater)))
    refused(path, file)
    assert not crater.exists()


def test_a_pickle_that_the_manifest_vouches_for_is_not_opened(path: Path) -> None:
    crater = path / "crater"
    (path / ".metadata").write_bytes(pickle.dumps(Bomb(crater)))
    forge(path)
    assert loaded_step(path) == 3
    assert not crater.exists()


def _archive(value: Any) -> Callable[[Path], None]:
    return lambda file: torch.save(value, file)


FORGED_VALUES: dict[str, Callable[[Path], Any]] = {
    "a pickle": lambda file: file.write_bytes(pickle.dumps(Bomb(file.parent / "crater"))),
    "torch's older format": lambda file: torch.save(
        Bomb(file.parent / "crater"), file, _use_new_zipfile_serialization=False
    ),
    "an archive of a pickle": lambda file: torch.save(Bomb(file.parent / "crater"), file),
    "garbage": lambda file: file.write_bytes(bytes(range(256))),
    "nothing": lambda file: file.write_bytes(b""),
    "no tensor": _archive([1, 2]),
    "a tensor of another size": _archive(torch.zeros(7)),
    "a tensor of another shape": _archive(torch.zeros(1, 3000)),
    "a tensor of another dtype": _archive(torch.zeros(3000, dtype=torch.float64)),
    "a sparse tensor": _archive(torch.ones(3000).to_sparse()),
    "a tensor of no device": _archive(torch.zeros(3000, device="meta")),
}


def _place_all_in_the_file(content: Any) -> None:
    for tensor in content["tensors"].values():
        for extent in tensor["extents"]:
            extent[5:] = [0, content["files"][DATA]["length"]]


@pytest.mark.parametrize("kind", FORGED_VALUES)
def test_forged_values_are_refused(tmp_path: Path, kind: str) -> None:
    values = torch.zeros(3000)
    path = save(tmp_path, 1, {"a": cut(values)}, {}, None)
    FORGED_VALUES[kind](path / DATA)
    forge(path, _place_all_in_the_file)
    with pytest.raises(CheckpointError) as error:
        load(path, {"a": cut(values)}, None)
    assert str(error.value).startswith(f"{path / DATA}: ")
    assert "values of a" in str(error.value)
    assert not values.any()
    assert not (path / "crater").exists()


def _set(value: Any, *keys: Any) -> Callable[[Any], None]:
    def edit(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return edit


def _rename_files(name: str) -> Callable[[Any], None]:
    def edit(content: Any) -> None:
        content["files"][name] = content["files"].pop(DATA)
        for tensor in content["tensors"].values():
            for extent in tensor["extents"]:
                extent[4] = name

    return edit


BIAS = ("tensors", "0.bias", "extents")
FORGED_MANIFESTS = {
    "a path upwards": _rename_files("../../etc/passwd"),
    "an absolute path": _rename_files("/etc/passwd"),
    "a path downwards": _rename_files("below/__0_0.distcp"),
    "a path and back": _rename_files("__0_0.distcp/../__0_0.distcp"),
    "a name with a line after": _rename_files("__0_0.distcp\n"),
    "the manifest itself": _rename_files("manifest.json"),
    "no name": _rename_files(""),
    "an extent elsewhere": _set("/etc/passwd", *BIAS, 0, 4),
    "an unknown file": _set("__9_9.distcp", *BIAS, 0, 4),
    "beyond the file": _set(10**6, *BIAS, 0, 5),
    "before the file": _set(-1, *BIAS, 0, 5),
    "a gap": _set([[0, 0, 1, 9, DATA, 0, 9], [0, 10, 1, 20, DATA, 0, 9]], *BIAS),
    "an overlap": _set([[0, 0, 1, 9, DATA, 0, 9], [0, 8, 1, 22, DATA, 0, 9]], *BIAS),
    "a late begin": _set([[0, 1, 1, 29, DATA, 0, 9]], *BIAS),
    "an empty extent": _set([[0, 0, 1, 0, DATA, 0, 9], [0, 0, 1, 30, DATA, 0, 9]], *BIAS),
    "no extents": _set([], *BIAS),
    "short extents": _set([[0, 0, 1, 30]], *BIAS),
    "a count that is true": _set(True, *BIAS, 0, 3),
    "a count that is text": _set("30", *BIAS, 0, 3),
    "an unknown dtype": _set("Tensor", "tensors", "0.bias", "dtype"),
    "a dtype of another type": _set([], "tensors", "0.bias", "dtype"),
    "tensors in a list": _set([], "tensors"),
    "a file without a length": _set({"sha256": ""}, "files", DATA),
    "another format": _set(4, "format"),
    "settings in a list": _set([], "settings"),
    "a negative step": _set(-1, "step"),
    "no step": lambda content: content.pop("step"),
}


@pytest.mark.parametrize("kind", FORGED_MANIFESTS)
def test_a_forged_manifest_is_refused(path: Path, kind: str) -> None:
    forge(path, FORGED_MANIFESTS[kind])
    refused(path, "manifest.json")


MATRIX = {
    "a gap": [[0, 0, 4, 2], [0, 2, 2, 1]],
    "values twice": [[0, 0, 4, 2], [0, 1, 4, 2]],
    "rows that are not there": [[0, 0, 5, 3]],
    "columns that are not there": [[0, 0, 4, 4]],
    "no rows": [[0, 0, 4, 3], [2, 0, 0, 3]],
    "half a box": [[0, 0, 4]],
}


@pytest.mark.parametrize("kind", MATRIX)
def test_forged_boxes_are_refused(tmp_path: Path, kind: str) -> None:
    values = torch.zeros(4, 3)
    tensors = {"a": TensorPieces(12, [(0, values)], 3)}
    path = save(tmp_path, 1, tensors, {}, None)
    boxes = [[*box, DATA, 0, 9] for box in MATRIX[kind]]
    forge(path, _set(boxes, "tensors", "a", "extents"))
    with pytest.raises(CheckpointError, match=r"manifest\.json: damaged"):
        load(path, tensors, None)


def _in_the_flat_format(content: Any) -> None:
    content["format"] = 1
    for tensor in content["tensors"].values():
        del tensor["shape"]
        tensor["extents"] = [
            [offset, size, *place] for _, offset, _, size, *place in tensor["extents"]
        ]


def test_the_earlier_flat_format_is_read(path: Path) -> None:
    forge(path, _in_the_flat_format)
    assert loaded_step(path) == 3
    forge(path, _set([[1, 29, DATA, 0, 9]], *BIAS))
    refused(path, "manifest.json")


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "1", '{"content": {}}', "[" * 10**5, "é"])
def test_what_is_no_manifest_is_refused(path: Path, text: str) -> None:
    (path / "manifest.json").write_bytes(text.encode("latin-1"))
    refused(path, "manifest.json")


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "manifest.json")
    refused(tmp_path / "none", "manifest.json")

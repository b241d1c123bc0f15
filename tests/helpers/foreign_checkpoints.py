"""The executor's readers of what others wrote: weights, checkpoints, corpora, messages."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
from safetensors.torch import save, save_file

from bfpp.executor.checkpoint import CheckpointError, read_manifest
from bfpp.executor.checkpoint import save as save_checkpoint
from bfpp.executor.checkpoint.manifest import MANIFEST, sealed
from bfpp.executor.model.transformer.corpus import read_text
from bfpp.executor.model.transformer.hugging_face import INDEX, WEIGHTS, Weights
from bfpp.executor.processes.watch.heartbeats import (
    Activity,
    Failure,
    Heartbeat,
    LaneState,
    heartbeat_from_json,
)
from bfpp.executor.processes.watch.json_fields import to_json
from bfpp.launchers.own.model import require_layers, transformer_source
from bfpp.sim.models.model import load_model
from bfpp.terminal.error_lines import refusing
from tests.executor.model.test_hugging_face_weights import CONFIGS
from tests.helpers.checkpoint_states import state_of, whole
from tests.helpers.foreign_bytes import JSON, TEXT, of_file
from tests.helpers.fuzzing import Reader


def _configs() -> list[bytes]:
    return [json.dumps(each).encode() for each in CONFIGS.values()]


def _trained(name: str) -> object:
    """The model that `bfpp run --model config.json` makes of it."""
    model = load_model(name)
    require_layers(model)
    return transformer_source(model, None, is_causal=True, file=name)


def _manifests() -> list[bytes]:
    saved = save_checkpoint(Path(mkdtemp(dir=".")), 3, whole(state_of(3)), {"rate": 0.1}, None)
    return [(saved / MANIFEST).read_bytes()]


def _manifest(contents: bytes) -> object:
    Path(MANIFEST).write_bytes(contents)
    with refusing("resume", CheckpointError):
        return read_manifest(Path())


def _contents() -> list[bytes]:
    """The contents of manifests inside their seal."""
    return [json.dumps(json.loads(each)["content"]).encode() for each in _manifests()]


def _forged(contents: bytes) -> object:
    """A manifest whose checksum is right whatever it says, if it can have one."""
    try:
        return _manifest(sealed(json.loads(contents)).encode())
    except (ValueError, RecursionError):
        return _manifest(contents)


def _weights(file: str, contents: bytes) -> object:
    for each in (INDEX, WEIGHTS):
        Path(each).unlink(missing_ok=True)
    Path(file).write_bytes(contents)
    weights = Weights(Path(), None)  # type: ignore[arg-type]
    return [weights.tensor(name) for name in weights._files]


def _tensors() -> list[bytes]:
    save_file({"one": torch.zeros(3)}, "part.safetensors")
    return [save({"one": torch.zeros(3), "two": torch.ones(2, 2)})]


def _indexes() -> list[bytes]:
    _tensors()
    return [json.dumps({"metadata": {}, "weight_map": {"one": "part.safetensors"}}).encode()]


def _corpora() -> list[bytes]:
    file = io.BytesIO()
    np.save(file, np.arange(100, dtype=np.uint16))
    return [file.getvalue()]


def _heartbeats() -> list[bytes]:
    lane = LaneState("compute", Activity("backward of stage 3", (1,), 7), busy=True, seconds=0.5)
    failure = Failure("an error", "step 1", 3, in_communication=False, traceback="lines")
    return [to_json(Heartbeat(3, "rank 1", 2, 0.5, (lane,), failure)).encode()]


def _heartbeat(contents: bytes) -> object:
    with refusing("store", ValueError):
        return heartbeat_from_json(contents, 4)


READERS = {
    "config.json, trained": Reader(_configs, of_file("config.json", _trained), JSON),
    "indexes of safetensors": Reader(_indexes, partial(_weights, INDEX), JSON),
    "safetensors": Reader(_tensors, partial(_weights, WEIGHTS), TEXT),
    "manifests of checkpoints": Reader(_manifests, _manifest, JSON),
    "forged manifests": Reader(_contents, _forged, JSON),
    "tokens in .npy": Reader(
        _corpora, of_file("text.npy", lambda name: read_text(Path(name))), TEXT
    ),
    "messages of processes": Reader(_heartbeats, _heartbeat, JSON),
}
"""By what is read; all others are in `tests.helpers.foreign_bytes`."""

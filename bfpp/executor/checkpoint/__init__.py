"""Checkpoints that survive interruptions, and load into any other cut of the model.

A directory of checkpoints holds one subdirectory for each, `save-000012-step-300`:
the data files and the `.metadata` of torch.distributed.checkpoint, which torch's
own tools read, with tensors by name and in their shapes, and `manifest.json`: the step, the
settings, where each tensor's values lie, and every file's SHA-256. The rules:

- A checkpoint is written under a hidden name and renamed when all processes are
  done and all of it is on disk. So whatever has the name of a checkpoint is
  complete, and what an interruption leaves has not. Old ones go after that.
- Saving a step again writes a new checkpoint, then removes the old one.
- Each value is written once, by one of the processes that hold it.
- Loading opens no pickle: the manifest is JSON, `.metadata` is left alone, and
  values are read as plain tensors (`weights_only`). Before the first value is
  written to a tensor, every file is checked against the manifest. The checksums detect
  damage, not forgery: anyone who can write to the directory can make a valid
  checkpoint, but not one that runs code.
- Several hosts need a file system that they share, and one training run at a time
  writes to a directory: a lock sees to it (`bfpp.executor.checkpoint.lock`).

`load` and `save` are imported when they are first used: torch's part of them takes as
long to import as half of torch, and a run without checkpoints needs none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from bfpp.executor.checkpoint.directory import Retention, Start, complete, latest, start_of
from bfpp.executor.checkpoint.lock import locked
from bfpp.executor.checkpoint.manifest import Manifest, read_manifest, read_settings
from bfpp.executor.checkpoint.pieces import TensorPieces
from bfpp.executor.checkpoint.processes import CheckpointError, Processes
from bfpp.executor.checkpoint.readiness import require_space, require_usable, size_of

if TYPE_CHECKING:
    from bfpp.executor.checkpoint.loading import load
    from bfpp.executor.checkpoint.saving import save

__all__ = [
    "CheckpointError",
    "Manifest",
    "Processes",
    "Retention",
    "Start",
    "TensorPieces",
    "complete",
    "latest",
    "load",
    "locked",
    "read_manifest",
    "read_settings",
    "require_space",
    "require_usable",
    "save",
    "size_of",
    "start_of",
]

_LATER = {"load": "loading", "save": "saving"}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)

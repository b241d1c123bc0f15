"""The names in a directory of checkpoints: a name says whether what it names is complete.

A rename is the one step by which a checkpoint comes or goes, and it is atomic:
in from an `.unfinished-` name, out to a `.discarded-` one, whose deletion may then
be interrupted at will.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

UNFINISHED = ".unfinished-"
DISCARDED = ".discarded-"
COMPLETE = re.compile(r"save-(?P<number>[0-9]+)-step-(?P<step>[0-9]+)")


class Saved(NamedTuple):
    """What a checkpoint's name says: which save of its directory it was, and of which step."""

    number: int
    step: int
    path: Path


def complete(directory: Path) -> list[Path]:
    """The complete checkpoints, in the order in which they were saved."""
    return [each.path for each in _saved(directory)]


def latest(directory: Path) -> Path | None:
    """The complete checkpoint that was saved last."""
    return next(reversed(complete(directory)), None)


def begin(directory: Path) -> Path:
    """A new place to write a checkpoint in; what interrupted saves left is removed."""
    directory.mkdir(parents=True, exist_ok=True)
    to_disk(directory.parent)
    for path in directory.iterdir():
        if path.name.startswith((UNFINISHED, DISCARDED)):
            shutil.rmtree(path, ignore_errors=True)
    unfinished = _unused(directory, UNFINISHED)
    unfinished.mkdir()
    return unfinished


def publish(unfinished: Path, step: int) -> Path:
    """Makes what was written a complete checkpoint, the latest of its directory.

    All its files are on disk already.
    """
    directory = unfinished.parent
    number = max((each.number for each in _saved(directory)), default=0) + 1
    path = directory / f"save-{number:06}-step-{step}"
    to_disk(unfinished)
    unfinished.rename(path)
    to_disk(directory)
    return path


def discard_old(directory: Path, keep: int) -> None:
    """Removes all complete checkpoints but the last `keep`, and others of the last one's step."""
    *old, new = _saved(directory)
    same_step = [each.path for each in old if each.step == new.step]
    others = [each.path for each in old if each.step != new.step]
    for path in same_step + others[: max(0, len(others) + 1 - keep)]:
        # What cannot be deleted now is tried again at the next save.
        shutil.rmtree(path.rename(_unused(path.parent, DISCARDED)), ignore_errors=True)


def to_disk(path: Path) -> None:
    """Waits until a file's bytes, or a directory's names, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _saved(directory: Path) -> list[Saved]:
    paths = directory.iterdir() if directory.is_dir() else ()
    named = [(COMPLETE.fullmatch(path.name), path) for path in paths]
    return sorted(
        Saved(int(match["number"]), int(match["step"]), path) for match, path in named if match
    )


def _unused(directory: Path, prefix: str) -> Path:
    return directory / f"{prefix}{uuid4().hex}"

"""Names in a directory of checkpoints: the name says whether a checkpoint is complete.

A rename is the one step by which a checkpoint comes or goes, and it is atomic:
in from an `.unfinished-` name, out to a `.discarded-` one, whose deletion may then
be interrupted at will.

The checkpoints of a directory are one history. Who goes back to an earlier one
abandons those that were saved after it: they stay until the first save of the
new history is on disk, and go before that one gets its name.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from bfpp.executor.checkpoint.lock import may_tidy
from bfpp.executor.checkpoint.processes import CheckpointError

UNFINISHED = ".unfinished-"
DISCARDED = ".discarded-"
COMPLETE = re.compile(r"save-(?P<number>[0-9]+)-step-(?P<step>[0-9]+)")

LONG_AGO = 24 * 3600.0
"""Seconds after which an unfinished save is taken to be dead, where no lock can show it."""


@dataclass(frozen=True)
class Retention:
    """Retention policy: keep the last ones and every `every`-th step's, nothing abandoned."""

    last: int = 2
    every: int | None = None
    abandoned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Start:
    """The checkpoint that a run goes on from, and the names of later ones, which it abandons."""

    path: Path
    step: int
    abandoned: tuple[str, ...] = ()


class SaveName(NamedTuple):
    """The name of a checkpoint: the number of the save in its directory, and the step."""

    number: int
    step: int
    path: Path


def complete(directory: Path) -> list[Path]:
    """The complete checkpoints, in the order in which they were saved."""
    return [each.path for each in _saved(directory)]


def latest(directory: Path) -> Path | None:
    """The complete checkpoint that was saved last."""
    return next(reversed(complete(directory)), None)


def start_of(directory: Path, step: int | None = None) -> Start | None:
    """The checkpoint to resume from: that of the step, by default the last, if there is one.

    Raises `CheckpointError` where there is none of that step.
    """
    saved = _saved(directory)
    if step is None:
        return Start(saved[-1].path, saved[-1].step) if saved else None
    of_step = [each for each in saved if each.step == step]
    if not of_step:
        *most, last = sorted({str(each.step) for each in saved}, key=int) or [""]
        others = ", but of " + (f"{', '.join(most)} and {last}" if most else last)
        raise CheckpointError(
            f"{directory} has no checkpoint of step {step}"
            f"{others if saved else ', nor of any other'}"
        )
    chosen = of_step[-1]
    later = tuple(each.path.name for each in saved if each.number > chosen.number)
    return Start(chosen.path, step, later)


def begin(directory: Path) -> Path:
    """A new place to write a checkpoint in; leftovers of interrupted saves are removed.

    But not what a live run has not finished.
    """
    directory.mkdir(parents=True, exist_ok=True)
    to_disk(directory.parent)  # the directory's own name is there, too, after a power cut
    is_alone, long_ago = may_tidy(directory), time.time() - LONG_AGO
    for path in directory.iterdir():
        is_left = path.name.startswith(UNFINISHED) and (is_alone or path.stat().st_mtime < long_ago)
        if is_left or path.name.startswith(DISCARDED):
            shutil.rmtree(path, ignore_errors=True)
    unfinished = unused(directory, UNFINISHED)
    unfinished.mkdir()
    return unfinished


def publish(unfinished: Path, step: int, abandoned: Iterable[str] = ()) -> Path:
    """Publish the written files as a complete checkpoint, the latest of its directory.

    All its files are on disk already. What was abandoned goes first: were it
    the other way round, an interruption could leave two histories. Its numbers
    are not given again, so that no later checkpoint has an abandoned one's name.
    """
    directory = unfinished.parent
    number = max((each.number for each in _saved(directory)), default=0) + 1
    _discard(directory / name for name in abandoned)
    path = directory / f"save-{number:06}-step-{step}"
    to_disk(unfinished)
    unfinished.rename(path)
    to_disk(directory)
    return path


def discard_old(directory: Path, retention: Retention) -> None:
    """Remove checkpoints beyond the retention, and others of the last one's step."""
    *old, new = _saved(directory)
    others = [each for each in old if each.step != new.step]
    beyond = others[: max(0, len(others) + 1 - retention.last)]
    every = retention.every
    gone = [each for each in beyond if every is None or each.step % every]
    _discard(each.path for each in old if each.step == new.step or each in gone)


def _discard(paths: Iterable[Path]) -> None:
    for path in paths:
        if path.exists():
            # What cannot be deleted now is tried again at the next save.
            shutil.rmtree(path.rename(unused(path.parent, DISCARDED)), ignore_errors=True)


def to_disk(path: Path) -> None:
    """Waits until a file's bytes, or a directory's names, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _saved(directory: Path) -> list[SaveName]:
    paths = directory.iterdir() if directory.is_dir() else ()
    named = [(COMPLETE.fullmatch(path.name), path) for path in paths]
    return sorted(
        SaveName(int(match["number"]), int(match["step"]), path) for match, path in named if match
    )


def unused(directory: Path, prefix: str) -> Path:
    """A name that nothing in the directory has."""
    return directory / f"{prefix}{uuid4().hex}"

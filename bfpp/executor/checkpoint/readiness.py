"""Check before training that checkpoints can be written to a directory."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from bfpp.executor.checkpoint.directory import DISCARDED, UNFINISHED, to_disk, unused
from bfpp.executor.checkpoint.lock import require_unlocked
from bfpp.executor.checkpoint.pieces import TensorPieces
from bfpp.executor.checkpoint.processes import CheckpointError, Processes, one_line

UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def require_usable(directory: Path) -> None:
    """Raises `CheckpointError` where no run could save now.

    The directory is made, no other run holds it, and all that a save does is
    tried: to write, to make sure of it, to rename and to remove.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        require_unlocked(directory)
        _try_a_save(directory)
    except OSError as error:
        raise one_line(error, directory) from error


def _try_a_save(directory: Path) -> None:
    tried = unused(directory, UNFINISHED)
    try:
        tried.mkdir()
        file = tried / "tried"
        file.write_bytes(b"tried")
        to_disk(file)
        to_disk(tried)
        tried = tried.rename(unused(directory, DISCARDED))
        to_disk(directory)
    finally:
        shutil.rmtree(tried, ignore_errors=True)


def size_of(tensors: Mapping[str, TensorPieces], processes: Processes) -> int:
    """Bytes of all values that the processes hold, each once; all of them ask."""
    own = {
        name: each.size * held[0][1].element_size()
        for name, each in tensors.items()
        if (held := each.nonempty())
    }
    sizes: dict[str, int] = {}
    for part in processes.together(lambda: own):
        sizes |= part
    return sum(sizes.values())


def require_space(directory: Path, needed: int) -> None:
    """Raises `CheckpointError` where there is no room for a checkpoint of `needed` bytes."""
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return
    if usage.total and usage.free < needed:
        raise CheckpointError(
            f"{directory}: a checkpoint takes {_in_words(needed)}, "
            f"and {_in_words(usage.free)} are free"
        )


def _in_words(size: int) -> str:
    unit, factor = next((each for each in UNITS if size >= each[1]), ("bytes", 1))
    return f"{size / factor:.3g} {unit}"

"""A command as program, settings and number of processes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from bfpp.launchers.sources.gpu_counts import GpuCount, gpu_count

if TYPE_CHECKING:  # all commands load this module, and few the settings
    from bfpp.launchers.arguments import Words

LAUNCHERS = ("torchrun", "python", "python3", "srun", "mpirun", "mpiexec", "deepspeed",
             "ft_launcher", "uv", "accelerate", "run_train.sh")  # fmt: skip
"""Programs that start training."""

LARGEST = 2**20
"""Bytes of a launch file, at most."""

SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
SHELLS, BATCH = ("bash", "sh"), "sbatch"
"""Programs that run a script or a text."""

_FLAG = re.compile(r"--?[A-Za-z_]")
_RUNNERS = re.compile(r"torch\.distributed\.(run|launch)")


class Program(NamedTuple):
    """A program that trains: its name, its settings, other words, and on how many GPUs."""

    name: str
    given: dict[str, Words]
    others: tuple[str, ...]
    devices: GpuCount


def program_name(word: str) -> str:
    """The name of a program without its folder."""
    return PurePosixPath(word).name or "."


def is_command(text: str) -> bool:
    """True for a text of several words that begins as a command which starts training."""
    words = text.split()
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        words = words[1:]
    if len(words) < 2:
        return False
    if program_name(words[0]) in (*SHELLS, BATCH):
        return any(word.endswith(SCRIPTS) for word in words)
    return program_name(words[0]) in LAUNCHERS or words[0].endswith((".py", ".sh"))


def program_of(words: Sequence[str], environment: Mapping[str, str]) -> Program | None:
    """The training program of a command; None if it starts none."""
    if not words or not (program_name(words[0]) in LAUNCHERS or words[0].endswith(".py")):
        return None
    at = _program_at(words)
    if at is None:
        return None
    given, others = settings_of(words[at + 1 :])
    return Program(words[at], given, tuple(others), gpu_count(words[:at], environment))


def _program_at(words: Sequence[str]) -> int | None:
    """The place of a script, or of a module after `-m`."""
    for at, word in enumerate(words):
        if word.endswith(".py") or program_name(word) == "run_train.sh":
            return at
        if at and words[at - 1] in ("-m", "--module") and not _RUNNERS.fullmatch(word):
            return at
    return None


def settings_of(words: Sequence[str]) -> tuple[dict[str, Words], list[str]]:
    """The flags with their values, the last of each name; and words before any flag."""
    settings: dict[str, list[str]] = {}
    others: list[str] = []
    values = others
    for word in words:
        if _FLAG.match(word) and " " not in word.partition("=")[0]:
            name, mark, value = word.partition("=")
            settings[name] = values = [value] if mark else []
        else:
            values.append(word)
    return {name: tuple(values) for name, values in settings.items()}, others

"""A command as program, settings and number of processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # all commands load this module, and few the settings
    from bfpp.launchers.arguments import Words

NODES = ("--nnodes", "--nodes", "-N", "--num-nodes", "--num_nodes")
OF_NODE = (
    "--nproc-per-node", "--ntasks-per-node", "--gpus-per-node", "--gres", "--num-gpus", "--npernode"
)  # fmt: skip
PROCESSES = ("--ntasks", "-n", "-np", "--np")
"""Options of torchrun, srun, sbatch, mpirun and DeepSpeed, with `_` as `-`."""

LAUNCHERS = ("torchrun", "python", "python3", "srun", "mpirun", "mpiexec", "deepspeed",
             "ft_launcher", "uv", "accelerate", "run_train.sh")  # fmt: skip
"""Programs that start training."""

_FLAG = re.compile(r"--?[A-Za-z_]")
_LAST_NUMBER = re.compile(r"(?:.*[:=])?([0-9]{1,6})")
_RUNNERS = re.compile(r"torch\.distributed\.(run|launch)")


class Program(NamedTuple):
    """A program that trains: its name, its settings, and on how many GPUs, if that is said."""

    name: str
    given: dict[str, Words]
    others: tuple[str, ...]
    gpus: int | None


def is_command(text: str) -> bool:
    """True for a text of several words that begins as a command which starts training."""
    words = text.split()
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        words = words[1:]
    return len(words) > 1 and (_base(words[0]) in LAUNCHERS or words[0].endswith((".py", ".sh")))


def program_of(words: Sequence[str], environment: Mapping[str, str]) -> Program | None:
    """The training program of a command; None if it starts none."""
    if not words or not (_base(words[0]) in LAUNCHERS or words[0].endswith(".py")):
        return None
    at = _program_at(words)
    if at is None:
        return None
    given, others = settings_of(words[at + 1 :])
    return Program(words[at], given, tuple(others), _gpus(words[:at], environment))


def _program_at(words: Sequence[str]) -> int | None:
    """The place of a script, or of a module after `-m`."""
    for at, word in enumerate(words):
        if word.endswith(".py") or _base(word) == "run_train.sh":
            return at
        if at and words[at - 1] == "-m" and not _RUNNERS.fullmatch(word):
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


def batch_gpus(words: Sequence[str]) -> int | None:
    """The number of GPUs that options of sbatch say."""
    return _gpus(words, {})


def _gpus(words: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """The number of processes that a launcher starts, by its options or by `WORLD_SIZE`."""
    said = {name.replace("_", "-"): number for name, number in _numbers(words)}
    nodes, of_node, all_ = (
        next((said[name] for name in names if name in said), None)
        for names in (NODES, OF_NODE, PROCESSES)
    )
    if of_node is not None:
        return of_node * (nodes or 1)
    if all_ is not None:
        return all_
    for name in ("WORLD_SIZE", "NGPU"):
        if (match := _LAST_NUMBER.fullmatch(environment.get(name, ""))) is not None:
            return int(match[1])
    return None


def _numbers(words: Sequence[str]) -> Iterator[tuple[str, int]]:
    """The options whose value is a number, or ends with one (`1:4`, `gpu:8`)."""
    for word, after in pairwise([*words, ""]):
        name, mark, value = word.partition("=")
        if name.startswith("-") and (match := _LAST_NUMBER.fullmatch(value if mark else after)):
            yield name, int(match[1])


def _base(word: str) -> str:
    return PurePosixPath(word).name

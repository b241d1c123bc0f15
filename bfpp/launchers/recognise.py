"""Names of launch files, and commands that start training: known without reading much of them."""

from __future__ import annotations

import re
from pathlib import Path

from bfpp.launchers.sources.command_words import LARGEST, SCRIPTS, is_command
from bfpp.schedules.reading import read_file

YAML = (".yaml", ".yml")
TOML, JSON = ".toml", ".json"


RECIPE = ".py:"
"""Between a file and a function in it, as between the file and the name of a schedule."""

OF_BRIDGE = b"megatron.bridge"
"""The import by which a file of recipes is known; it is not run, as one with a schedule is."""


OF_DEEPSPEED = re.compile(
    rb'"(zero_optimization|train_batch_size|train_micro_batch_size_per_gpu|'
    rb'gradient_accumulation_steps)"\s*:'
)
"""Keys by which DeepSpeed's JSON is known."""


def is_launch_file(name: str) -> bool:
    """True if SCHEDULE is a launch file, or a command that starts training."""
    if name.endswith(JSON):
        return is_deepspeed(name)
    if name.endswith(TOML):
        return is_torchtitan(name)
    return name.endswith((*SCRIPTS, *YAML)) or is_command(name) or is_recipe(name)


def is_torchtitan(name: str) -> bool:
    """True for TOML with the tables of torchtitan, rather than the values of an experiment."""
    try:
        text = read_file(Path(name)).decode()
    except (OSError, ValueError):  # who reads it says so
        return False
    return re.search(r"^\[(parallelism|training|job)\]", text, re.MULTILINE) is not None


def is_recipe(name: str) -> bool:
    """True for a function in a file of recipes of Megatron-Bridge."""
    file, mark, _ = name.partition(RECIPE)
    if not mark:
        return False
    try:
        return OF_BRIDGE in read_file(Path(f"{file}.py"))
    except OSError:  # who loads it says so
        return False


def is_deepspeed(name: str) -> bool:
    """True for a JSON with keys of DeepSpeed."""
    path = Path(name)
    try:
        small = path.is_file() and path.stat().st_size <= LARGEST
        return small and OF_DEEPSPEED.search(read_file(path)) is not None
    except (OSError, ValueError):  # who reads it says so
        return False

"""Experiments of AMD's Primus as flags of Megatron-LM: YAML, over files of models and trainers.

An experiment names its model and its trainer, files of Primus's checkout, which extend others; it
overrides their settings, and has `${VARIABLE:default}` for values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from math import lcm, prod
from pathlib import Path
from typing import Any

from bfpp.launchers.arguments import (
    FIELD,
    NOT_SET,
    OFF,
    Arguments,
    Ignored,
    Words,
    shortened,
)
from bfpp.launchers.megatron.flag_kinds import FLAGS, OTHER_NAMES
from bfpp.launchers.megatron.without_effect import reason_of
from bfpp.launchers.sources.documents import leaves, text_of_file, yaml_table
from bfpp.schedules import InvalidConfiguration

FRAMEWORK = "megatron"

CONFIGS = Path("primus", "configs")
"""The folder with the files of models and trainers, in a folder around the experiment."""

FILES = {"config": "modules", "model": "models"}
"""Keys of a module that name a file, and the folders of these."""

EXTENDED, DEEPEST = "extends", 10

GPUS_OF_NODE = 8
"""Devices of a node, unless `GPUS_PER_NODE` says otherwise."""

FALSE: dict[str, str] = {
    "add-bias-linear": "--disable-bias-linear",
    "overlap-p2p-comm": "--no-overlap-p2p-communication",
}
"""Flags for settings that are false, where that is not a flag that begins with `no-`."""

OWN_NAMES = {"use-turbo-deepep": "--moe-enable-deepep"}
"""Flags for settings of its own kernels."""

_VARIABLE = re.compile(r"\$\{([^:{}]+)(?::([^}]*))?\}")


def module_of(table: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The module of an experiment that trains with Megatron-LM."""
    modules = table.get("modules")
    every = modules.values() if isinstance(modules, dict) else ()
    return next(
        (each for each in every if isinstance(each, dict) and each.get("framework") == FRAMEWORK),
        None,
    )


def flags_of_primus(
    path: str, module: Mapping[str, Any]
) -> tuple[dict[str, Words], dict[str, str], list[Ignored]]:
    """The settings of a module as flags, what it calls its own, and those of these that are none.

    Of the files that it names, what is known counts, and nothing else is named.
    """
    beneath: dict[str, Words] = {}
    for key, folder in FILES.items():
        if key in module:
            name = _file_name(path, module[key])
            beneath |= _extended(_configs(path, name) / folder / FRAMEWORK / name)
    overrides = module.get("overrides")
    settings = leaves(path, overrides) if isinstance(overrides, dict) else {}
    own = {name: _words(words) for name, words in settings.items()}
    flags, called, left_out = dict[str, Words](), dict[str, str](), list[Ignored]()
    for name, words in {**beneath, **own}.items():
        flag = _flag(name, words)
        if flag is None:
            if name in own and words not in (*OFF, *NOT_SET):
                matters, reason = reason_of(name)
                left_out.append(Ignored(name, " ".join(words)[:60], matters, reason))
            continue
        flags |= flag
        called |= dict.fromkeys(flag, name) if name in own else {}
    return flags, called, left_out


def gpus_of_nodes(given: Arguments) -> int:
    """The devices of the fewest whole nodes that the degrees of these flags allow."""
    degrees = ("tensor-model", "pipeline-model", "context")
    together = prod(given[f"--{each}-parallel-size"] for each in degrees)
    return lcm(together or 1, GPUS_OF_NODE)


def _configs(path: str, name: str) -> Path:
    """Primus's folder of files; raises `InvalidConfiguration` where none is around a file."""
    for folder in Path(path).resolve().parents:
        if (folder / CONFIGS).is_dir():
            return folder / CONFIGS
    reason = f"{path}: {name} is a file of Primus's checkout ({CONFIGS}), which is not around it"
    raise InvalidConfiguration(FIELD, reason)


def _extended(file: Path, depth: int = 0) -> dict[str, Words]:
    """The settings of a file over those that it extends."""
    if depth == DEEPEST:
        raise InvalidConfiguration(FIELD, f"{file} extends others too deeply")
    table = yaml_table(str(file), text_of_file(str(file)))
    settings: dict[str, Words] = {}
    extended = table.pop(EXTENDED, None) or ()
    for each in [extended] if isinstance(extended, str) else extended:
        settings |= _extended(file.parent / _file_name(str(file), each), depth + 1)
    return settings | {name: _words(words) for name, words in leaves(str(file), table).items()}


def _file_name(path: str, value: object) -> str:
    """The name of a file that another one names."""
    if not isinstance(value, str):
        raise InvalidConfiguration(FIELD, f"{path} names no file, but {shortened(str(value))!r}")
    return _written_out(value)


def _written_out(text: str) -> str:
    """A text with its variables, or their defaults, written out."""
    return _VARIABLE.sub(lambda of: os.environ.get(of[1], of[2] or ""), text)


def _words(words: Words) -> Words:
    return tuple(
        word.lower() if word in ("True", "False") else word for word in map(_written_out, words)
    )


def _flag(name: str, words: Words) -> dict[str, Words] | None:
    """A setting as a flag that is known; None for others, and for what says nothing."""
    bare = name.replace("_", "-")
    flag = OWN_NAMES.get(bare) or OTHER_NAMES.get(f"--{bare}", f"--{bare}")
    if words == ("false",):
        flag = FALSE.get(bare, f"--no-{bare}")
        return {flag: ()} if flag in FLAGS else None
    if flag not in FLAGS or words in NOT_SET:
        return None
    return {flag: () if words == ("true",) else words}

"""Scripts and texts that a command has a shell run, and the arguments that they are given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bfpp.launchers.sources.command_words import BATCH, LAUNCHERS, SCRIPTS, SHELLS, program_name
from bfpp.schedules.reading import exists

SOURCING = ("source", ".")
"""Programs that run a file in the shell itself."""

EVALUATING = "eval"
"""The program that runs a text in the shell itself."""

POSITIONAL = (*"0123456789", "@", "*", "#")
"""Names of the arguments of a script: each, all, and how many."""

UNGIVEN: dict[str, str | list[str]] = {"@": []}
"""The variables of a script whose arguments are not known."""

_UNKNOWN_FOLDER = re.compile(r"^(?:\$\(.*\)|`.*`|\$\{?\w+\}?)/")
"""A folder that only a run tells, which is most often that of the script."""

_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*|[0-9@*#])")


class ScriptCall(NamedTuple):
    """A script that is started, and its arguments."""

    file: Path
    arguments: tuple[str, ...]


def script_call(fields: Sequence[str], folder: Path) -> ScriptCall | None:
    """The script that a command starts; None if it starts none that is there."""
    program = program_name(fields[0])
    if program.endswith(SCRIPTS) and program not in LAUNCHERS:
        first = 0
    elif program in (*SOURCING, *SHELLS, BATCH):
        first = 1
    else:
        return None
    for at, field in enumerate(fields[first:], first):
        if file := file_beside(field, folder):
            return ScriptCall(file, tuple(fields[at + 1 :]))
    return None


def file_beside(name: str, folder: Path) -> Path | None:
    """The file of that name, if it is there, seen from the folder of a script."""
    file = folder / _UNKNOWN_FOLDER.sub("", name)
    return file if exists(file) and file.is_file() else None


def shell_text(fields: list[str]) -> tuple[list[str], str | None]:
    """The text that a command has a shell run, and the words before the shell."""
    if fields[0] == EVALUATING:
        return [], " ".join(fields[1:])
    for at, word in enumerate(fields[:-1]):
        if word == "-c" and any(program_name(each) in SHELLS for each in fields[:at]):
            begins = next(n for n, each in enumerate(fields) if program_name(each) in SHELLS)
            return fields[:begins], fields[at + 1]
    return [], None


def parameters(arguments: Sequence[str]) -> dict[str, str | list[str]]:
    """The variables of a script with these arguments."""
    each = dict.fromkeys(POSITIONAL[1:10], "") | {
        str(number): value for number, value in enumerate(arguments, 1)
    }
    return {**each, "@": [*arguments], "*": [*arguments], "#": str(len(arguments))}


def unknown_in(text: str) -> tuple[str, ...]:
    """The names of variables that are left in an expanded text."""
    return tuple(dict.fromkeys(_VARIABLE.findall(text)))


def how_to_give(name: str, path: str) -> str:
    """A sentence on how a command says the value of a variable."""
    if name in POSITIONAL:
        return f"depends on ${name}, which -- bash {path} ARGUMENTS gives"
    return f"depends on ${name}, which -- {name}=VALUE bash {path} gives"

"""Parts of a shell script that is read: commands, what was left out, branches and values."""

from __future__ import annotations

from typing import NamedTuple

Value = str | list[str]


class Command(NamedTuple):
    """A command's words and variables set for it alone, in a line."""

    line: int
    words: tuple[str, ...]
    environment: dict[str, str]


class LeftOut(NamedTuple):
    """A part of a script that depends on what runs, and the variables that it depends on."""

    line: int
    text: str
    unknown: tuple[str, ...]


class Script(NamedTuple):
    """A script's commands in order, its variables at the end, omitted parts, and files it wrote."""

    commands: tuple[Command, ...]
    variables: dict[str, Value]
    left_out: tuple[LeftOut, ...]
    files: dict[str, str]


class ScriptBranch(NamedTuple):
    """A part of an `if`, or of the `case` of a text: does it run, and did one before it.

    None is not known. A group in brackets is a branch, too, which may run if that is not known.
    """

    runs: bool | None
    ran: bool | None
    subject: str | None = None
    bracket: str = ""


def appended(before: Value | None, value: Value) -> Value:
    """The value of a variable that another is added to by `+=`."""
    if before is None:
        return value
    if isinstance(before, str) and isinstance(value, str):
        return before + value
    return [*([before] if isinstance(before, str) else before),
            *([value] if isinstance(value, str) else value)]  # fmt: skip

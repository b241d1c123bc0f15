"""Parts of a shell script that is read: commands, what was left out, branches and variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bfpp.launchers.sources.shell_calls import POSITIONAL, parameters
from bfpp.launchers.sources.shell_words import Token, expand

Value = str | list[str]

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)


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
    """A script's commands in order, its variables at the end, omitted parts, and files it wrote.

    Of tests whether a variable is set, those that were taken to find that it is not.
    """

    commands: tuple[Command, ...]
    variables: dict[str, Value]
    left_out: tuple[LeftOut, ...]
    files: dict[str, str]
    unset: tuple[LeftOut, ...]


class ScriptBranch(NamedTuple):
    """A part of an `if`, or of the `case` of a text: does it run, and did one before it.

    None is not known. A group in brackets is a branch, too, which may run if that is not known. One
    that `supposes` runs as far as a variable is not set.
    """

    runs: bool | None
    ran: bool | None
    subject: str | None = None
    bracket: str = ""
    supposes: bool = False


class Variables(dict[str, Value]):
    """Variables of a script that are known."""

    def fields(self, token: Token, *, whole: bool = False) -> list[str]:
        """The fields that a word becomes; a `whole` one that becomes none is empty."""
        fields = expand(token.text, self)
        return (fields or [""]) if whole else fields

    def text(self, word: str) -> str:
        """The text that a word becomes."""
        return " ".join(expand(word, self))

    def assign(self, words: Iterable[Token]) -> None:
        """Set variables by assignments; other words are none."""
        for token in words:
            match = ASSIGNMENT.match(token.text)
            if match is None:
                continue
            name, appends, text = match[1], bool(match[2]), match[3]
            value: Value
            if token.elements is not None:
                value = [part for each in token.elements for part in expand(each, self)]
            else:
                value = self.text(text)
            self[name] = appended(self.get(name), value) if appends else value

    def leave_empty(self, statement: Iterable[Token]) -> None:
        """Variables that a statement would set are empty, if they are not set."""
        for token in statement:
            if token.is_word and (match := ASSIGNMENT.match(token.text)):
                self.setdefault(match[1], "" if token.elements is None else [])

    def give(self, arguments: Mapping[str, Value]) -> None:
        """Have these arguments of a script and no others."""
        for name in POSITIONAL:
            self.pop(name, None)
        self.update(arguments)

    def shift(self, given: Sequence[str]) -> None:
        """Drop the first arguments, if they are known."""
        number = int(given[0]) if given and given[0].isdecimal() else 1
        if "#" in self:
            self.give(parameters(self["@"][number:]))


def appended(before: Value | None, value: Value) -> Value:
    """The value of a variable that another is added to by `+=`."""
    if before is None:
        return value
    if isinstance(before, str) and isinstance(value, str):
        return before + value
    return [*([before] if isinstance(before, str) else before),
            *([value] if isinstance(value, str) else value)]  # fmt: skip

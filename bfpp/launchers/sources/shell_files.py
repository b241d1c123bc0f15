"""Texts that the commands of a shell script write to files, as far as they are plain.

`cat` of files and here-documents, `echo`, `tee`, and `sed` that puts one text in another's place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from bfpp.launchers.sources.command_words import program_name
from bfpp.launchers.sources.documents import text_if_plain
from bfpp.launchers.sources.shell_calls import file_beside

LONGEST = 200_000
"""Letters that a file may have when it is made."""

_PUT = re.compile(r"s(\W)((?:(?!\1).)*)\1((?:(?!\1).)*)\1(g?)", re.DOTALL)
_SPECIAL = re.compile(r"[\\\[\]*^$&]")

Read = Callable[[str], str | None]
"""The text of a file by its name; None if there is none that is known."""


class WrittenFiles:
    """The texts of files that a script writes, by the names that it has for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.texts: dict[str, str] = {}

    def written(
        self, words: Sequence[str], given: str | None, targets: Iterable[tuple[str, bool]]
    ) -> str | None:
        """The text that a command writes, which is kept for its files; some are appended to."""
        text = output_of(words, given, self.read) if words else None
        for name, appends in [*targets, *((name, False) for name in _written_by_tee(words))]:
            before = self.texts.pop(name, "")
            if text is not None:
                self.texts[name] = before * appends + text
        return text

    def read(self, name: str) -> str | None:
        """The text of a file that the script wrote, or that is beside it."""
        if name in self.texts:
            return self.texts[name]
        file = file_beside(name, self.folder)
        return text_if_plain(file) if file else None


def output_of(words: Sequence[str], given: str | None, read: Read) -> str | None:
    """The text that a command writes of the one that it is given; None where only a run tells."""
    program, further = program_name(words[0]), list(words[1:])
    text = None
    if program == "cat":
        text = _all(read, [each for each in further if each != "-"]) if further else given
    elif program == "echo":
        text = " ".join(each for each in further if each not in ("-e", "-n", "-E")) + "\n"
    elif program == "tee":
        text = given
    elif program == "sed":
        text = _edited(further, given, read)
    return text if text is None or len(text) <= LONGEST else None


def _written_by_tee(words: Sequence[str]) -> list[str]:
    """The files that `tee` writes."""
    return [each for each in words[1:] if each[:1] != "-"] if [*words[:1]] == ["tee"] else []


def _all(read: Read, names: Iterable[str]) -> str | None:
    texts = [read(name) for name in names]
    return None if None in texts else "".join(text for text in texts if text is not None)


def _edited(words: list[str], given: str | None, read: Read) -> str | None:
    """A text or files as `sed` edits them, if it puts plain texts in place of others."""
    commands = [after for before, after in pairwise(words) if before == "-e"]
    names = [word for word in words if word != "-e" and word not in commands]
    if not commands:
        commands, names = names[:1], names[1:]
    if any(name.startswith("-") for name in names):
        return None
    text = _all(read, names) if names else given
    for command in commands:
        for part in filter(None, command.split(";")):
            put = _PUT.fullmatch(part.strip())
            if text is None or put is None or _SPECIAL.search(put[2]) or _SPECIAL.search(put[3]):
                return None
            text = "\n".join(
                line.replace(put[2], put[3], -1 if put[4] else 1) for line in text.split("\n")
            )
    return text

"""YAML and TOML as nested tables whose leaves are texts: types are the reader's to say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from bfpp.launchers.arguments import FIELD, Words
from bfpp.launchers.sources.command_words import LARGEST
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.reading import read_file

LARGEST_YAML = 2**16
"""Letters of a launch file in YAML, whose reader is slow, at most."""

DEEPEST, MOST_LEAVES = 50, 20_000
"""Tables in tables, and settings, at most: aliases of YAML could make very many."""

MERGED = "<<"
"""The key of YAML whose table is merged into the one that has it."""


def text_of_file(path: str) -> str:
    """The text of a launch file; raises `InvalidConfiguration`."""
    try:
        contents = read_file(Path(path))
        if len(contents) > LARGEST:
            reason = f"{path} is larger than {LARGEST:,} bytes: no launch file"
        else:
            return contents.decode()
    except OSError as error:
        reason = f"cannot read {path!r}: {error.strerror}"
    except UnicodeDecodeError as error:
        reason = f"{path} is not text: byte {error.start} is not UTF-8"
    raise InvalidConfiguration(FIELD, reason)


def text_if_plain(path: Path) -> str | None:
    """The text of a file; None where it is none, or too long."""
    try:
        return text_of_file(str(path))
    except InvalidConfiguration:
        return None


def yaml_table(path: str, text: str) -> dict[str, Any]:
    """The table of a YAML file, whose leaves are texts: tags are not read, so nothing is made."""
    import yaml

    if len(text) > LARGEST_YAML:
        reason = f"{path} has more than {LARGEST_YAML:,} letters: no launch file"
        raise InvalidConfiguration(FIELD, reason)
    if _depth(text) > DEEPEST:  # takes the parser a square of it
        raise InvalidConfiguration(FIELD, f"{path} is nested too deeply: no launch file")
    try:
        table = yaml.load(text, yaml.BaseLoader)  # noqa: S506  (makes texts, lists and tables)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split()) or "nested too deeply"
        raise InvalidConfiguration(FIELD, f"{path} is not YAML: {reason}") from None
    if not isinstance(table, dict):
        raise InvalidConfiguration(FIELD, f"{path} holds no table of settings")
    return table


def yaml_text(documents: Sequence[Mapping[str, Any]]) -> str:
    """Tables as the documents of a YAML file, in their order."""
    import yaml

    text: str = yaml.safe_dump_all(documents, sort_keys=False)
    return text


def _depth(text: str) -> int:
    """Depth of nested brackets, those in quotes too."""
    steps = ((letter in "[{") - (letter in "]}") for letter in text)
    return max(accumulate(steps), default=0)


def leaves(path: str, table: Mapping[str, Any]) -> dict[str, Words]:
    """The settings of nested tables by dotted name; an alias of YAML is a table like others."""
    settings = dict(islice(_leaves(table, ()), MOST_LEAVES + 1))
    if len(settings) > MOST_LEAVES:
        raise InvalidConfiguration(FIELD, f"{path} has more than {MOST_LEAVES:,} settings")
    return settings


def _leaves(table: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, Words]]:
    for key, value in table.items():
        name = above if key == MERGED else (*above, str(key))
        if isinstance(value, Mapping):
            if len(above) < DEEPEST:
                yield from _leaves(value, name)
        elif isinstance(value, list):
            yield ".".join(name), tuple(map(_plain, value))
        else:
            yield ".".join(name), (_plain(value),)


def _plain(value: object) -> str:
    """A leaf as text; true and false as YAML has them."""
    return str(value).lower() if isinstance(value, bool) else str(value)

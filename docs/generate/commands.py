"""The reference of the commands, one page each, from the parsers that the commands make."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import starmap

from bfpp.terminal.command_table import BY_SUBJECT, COMMANDS, module_of
from bfpp.terminal.help import invocation, usage
from bfpp.terminal.parser import Parser
from docs.generate import json_keys

FOLDER = "reference/commands"

_BARE = re.compile(r"(?<![\w`-])(--[a-z][\w-]*|[\w*]+\.(?:toml|csv|json|py)(?::\w+)?)(?!\w|`)")


def pages() -> dict[str, str]:
    """Each page's Markdown, by its path in the docs."""
    found = {f"{FOLDER}/index.md": _INTRODUCTION + "".join(starmap(_chapter, BY_SUBJECT.items()))}
    for name, summary in COMMANDS.items():
        found[f"{FOLDER}/{name}.md"] = "\n".join(_page(name, summary))
    return found


_INTRODUCTION = """\
# Commands

Every command takes `--help` (of a command with many options, `--help SUBJECT` explains some, and
`--help all` every one), and `--json` to print one JSON object and nothing else. Errors go to
standard error in one line. Exit codes: 0 done, 1 a check or a run failed, 2 something that was
given cannot be used, 70 a fault of the program, 130 interrupted, 143 ended by SIGTERM.

Every JSON object has `schema`, the version of its keys: new keys come without notice, and the
version is raised when a key is removed or changes its meaning. A key that is renamed keeps its old
name beside the new one. Numbers are finite; where there is none, the value is `null`. Each page
ends with the keys of its JSON, their units and meaning; `--json-schema` prints them as a
[JSON Schema](https://json-schema.org) (draft 2020-12), for validators, editors and generators of
types.
"""


def _chapter(title: str, group: Mapping[str, str]) -> str:
    rows = "".join(
        f"| [`bfpp {name}`]({name}.md) | {summary} |\n" for name, summary in group.items()
    )
    return f"\n## {title[0].upper()}{title[1:]}\n\n| command | what for |\n| --- | --- |\n{rows}"


_JSON = """\
What `--json` prints; `--json-schema` prints its schema. `ranks[].start` is the key `start` of each
element of `ranks`, `NAME` any name."""


def _page(name: str, summary: str) -> Iterator[str]:
    parser = Parser(prog=f"bfpp {name}")
    import_module(module_of(name)).add_arguments(parser)
    yield f"# bfpp {name}\n\n{summary[0].upper()}{summary[1:]}.\n"
    yield f"```text\n{usage(parser)}\n```\n"
    for subject in parser.subjects:
        yield f"## {subject.title[:1].upper()}{subject.title[1:]}\n"
        yield from map(_entry, subject.actions)
    if "--json" in parser.names:
        yield f"## JSON\n\n{_JSON}\n\n{json_keys.table(name)}"


def _entry(action: argparse.Action) -> str:
    """An option, and below it what it means."""
    meaning = argparse.HelpFormatter("bfpp")._expand_help(action) if action.help else ""
    first, *rows = _BARE.sub(r"`\1`", meaning.replace("<", "&lt;")).splitlines() or [""]
    listed = "".join(f"\n    - {row}" for row in rows)
    return f"`{invocation(action)}`\n:   {first}\n{listed}\n"

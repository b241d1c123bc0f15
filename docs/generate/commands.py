"""The reference of the commands, one page each, from the parsers that the commands make."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from importlib import import_module

from bfpp.terminal.command_table import COMMANDS, module_of
from bfpp.terminal.parser import Parser
from docs.generate import json_keys

FOLDER = "reference/commands"

_BARE = re.compile(r"(?<![\w`-])(--[a-z][\w-]*|[\w*]+\.(?:toml|csv|json|py)(?::\w+)?)(?!\w|`)")


def pages() -> dict[str, str]:
    """Each page's Markdown, by its path in the docs."""
    summaries = "\n".join(
        f"| [`bfpp {name}`]({name}.md) | {summary} |" for name, summary in COMMANDS.items()
    )
    found = {f"{FOLDER}/index.md": f"{_INTRODUCTION}{summaries}\n"}
    for name, summary in COMMANDS.items():
        found[f"{FOLDER}/{name}.md"] = "\n".join(_page(name, summary))
    return found


_INTRODUCTION = """\
# Commands

Every command takes `--help`, and `--json` to print one JSON object and nothing else. Errors go to
standard error in one line. Exit codes: 0 done, 1 a check or a run failed, 2 something that was
given cannot be used, 70 a fault of the program, 130 interrupted, 143 ended by SIGTERM.

Every JSON object has `schema`, the version of its keys: new keys come without notice, and the
version is raised when a key is removed or changes its meaning. A key that is renamed keeps its old
name beside the new one. Numbers are finite; where there is none, the value is `null`. Each page
ends with the keys of its JSON, their units and meaning; `--json-schema` prints them as a
[JSON Schema](https://json-schema.org) (draft 2020-12), for validators, editors and generators of
types.

| command | what for |
| --- | --- |
"""


_JSON = """\
What `--json` prints; `--json-schema` prints its schema. `ranks[].start` is the key `start` of each
element of `ranks`, `NAME` any name."""


def _page(name: str, summary: str) -> Iterator[str]:
    parser = Parser(prog=f"bfpp {name}")
    import_module(module_of(name)).add_arguments(parser)
    positional, options, *groups = parser._action_groups
    yield f"# bfpp {name}\n\n{summary[0].upper()}{summary[1:]}.\n"
    usage = " ".join([f"bfpp {name}", *map(_invocation, positional._group_actions), "[OPTIONS]"])
    yield f"```text\n{usage}\n```\n"
    yield from map(_entry, positional._group_actions)
    for group in groups:
        if shown := [each for each in group._group_actions if each.help != argparse.SUPPRESS]:
            title = group.title or ""
            yield f"## {title[:1].upper()}{title[1:]}\n\n{group.description or ''}\n"
            yield from map(_entry, shown)
    yield "## General\n"
    yield from map(_entry, options._group_actions)
    if "--json" in parser.names:
        yield f"## JSON\n\n{_JSON}\n\n{json_keys.table(name)}"


def _entry(action: argparse.Action) -> str:
    """An option, and below it what it means."""
    meaning = argparse.HelpFormatter("bfpp")._expand_help(action) if action.help else ""
    first, *rows = _BARE.sub(r"`\1`", meaning.replace("<", "&lt;")).splitlines() or [""]
    listed = "".join(f"\n    - {row}" for row in rows)
    return f"`{_invocation(action)}`\n:   {first}\n{listed}\n"


def _invocation(action: argparse.Action) -> str:
    """An option with its aliases and value, or the name of a positional argument."""
    takes = action.metavar or (
        f"{{{','.join(map(str, action.choices))}}}" if action.choices else ""
    )
    value = takes if isinstance(takes, str) else " ".join(takes)
    if not action.option_strings:
        value = value or action.dest.upper()
        return f"[{value} ...]" if action.nargs == "*" else value
    return ", ".join(action.option_strings) + (f" {value}" if action.nargs != 0 and value else "")

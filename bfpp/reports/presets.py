"""Presets, for `models` and `clusters`: a table of all, or one of them as a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from bfpp.options import shared
from bfpp.schedules import InvalidConfiguration, InvalidInput
from bfpp.schedules.reading import read_file
from bfpp.sim.presets.files import PRESETS, preset_names
from bfpp.terminal.printing import print_json, print_table

Kind = TypeVar("Kind")


def file_text(name: str, name_or_path: str) -> str:
    """The TOML of a preset or of a file."""
    preset = PRESETS / f"{name}s" / f"{name_or_path}.toml"
    path = preset if name_or_path in preset_names(name) else Path(name_or_path)
    return read_file(path).decode()


@dataclass(frozen=True)
class Presets(Generic[Kind]):
    """One kind of preset (`model` or `cluster`), and its columns in a table.

    `columns` are those of the table, `record` the JSON object of one, `text`
    its file, by name or path.
    """

    name: str
    title: str
    files: str
    columns: Mapping[str, Callable[[Kind], str]]
    load: Callable[[str], Kind]
    record: Callable[[Kind], dict[str, Any]]
    text: Callable[[str], str]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The options of the command."""
        parser.add_argument(
            "preset",
            nargs="?",
            metavar="NAME|FILE",
            help=f"print this one as a {self.name} file: a preset, {self.files} "
            "(default: list the presets)",
        )
        shared.add_json_argument(parser)

    def run(self, options: argparse.Namespace) -> int:
        """List the presets, or print one."""
        if options.preset is None:
            self._list(options)
            return 0
        try:
            record = self.record(self.load(options.preset))
            text = self.text(options.preset)
        except InvalidConfiguration as error:
            raise InvalidInput(f"NAME|FILE: {error.reason}") from None
        if options.json:
            print_json(record)
        else:
            sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return 0

    def _list(self, options: argparse.Namespace) -> None:
        presets = {name: self.load(name) for name in preset_names(self.name)}
        if options.json:
            print_json({f"{self.name}s": [self.record(each) for each in presets.values()]})
            return
        rows = [
            [name, *(column(each) for column in self.columns.values())]
            for name, each in presets.items()
        ]
        print_table(self.title, ["name", *self.columns], rows)

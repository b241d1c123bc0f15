"""Printing on the terminal: JSON, tables, counts, and files written."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bfpp.terminal.error_lines import one_line

WIDTH_OF_FILES = 120
"""Characters in a line of output that goes to no terminal."""

SHORT = 13
"""Letters up to which a table's cell stays on one line: `45.7 TFLOP/s`."""

SCHEMA = 1
"""Version of all JSON (`bfpp/options/schemas`): raised when a key is removed or changes meaning."""

RANKS_SHOWN = 16
"""Ranks that a table shows; JSON has all of them."""


def counted(number: int, noun: str, plural: str = "s") -> str:
    """A number of things: `1 rank`, `8 micro-batches`."""
    return f"{number} {noun}{plural if number > 1 else ''}"


def print_json(record: Mapping[str, Any]) -> None:
    """One JSON object on standard output, as the command's schema describes it."""
    sys.stdout.write(json.dumps({"schema": SCHEMA, **record}, allow_nan=False) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output; the first column is left-aligned, the others right."""
    console = output()
    padding, widths = _columns_of(list(zip(columns, *rows, strict=True)), console.width)
    table = Table(
        box=SIMPLE_HEAD, show_header=any(columns), show_edge=False, pad_edge=False,
        padding=(0, padding, 0, 0),
    )  # fmt: skip
    for number, (column, width) in enumerate(zip(columns, widths, strict=True)):
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(Text(column), justify=justify, overflow="fold", width=width)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(Text(title, style="bold"))
    console.print(table)
    console.print()


def _columns_of(table: Sequence[Sequence[str]], room: int) -> tuple[int, Sequence[int | None]]:
    """The padding and widths of a table's columns that break no word and no short cell.

    Where there is no room for that, the widths are left to the table.
    """
    least = [_least_width(cells) for cells in table]
    padding = 1 if sum(least) + 2 * len(least) <= room + 1 else 0
    room -= (1 + padding) * len(least) - 1
    if sum(least) > room:
        return padding, [None] * len(least)
    widths = [max(len(line) for cell in cells for line in cell.split("\n")) for cells in table]
    while sum(widths) > room:
        slack = [width - narrowest for width, narrowest in zip(widths, least, strict=True)]
        widths[slack.index(max(slack))] -= 1
    return padding, widths


def _least_width(cells: Sequence[str]) -> int:
    header, *rest = cells
    short = [cell for cell in rest if len(cell) <= SHORT]
    return max(map(len, [*" ".join([header, *rest]).split(), *short]), default=0)


def output() -> Console:
    """Standard output; wide where it is no terminal and nothing else is said."""
    is_narrowed = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if is_narrowed else WIDTH_OF_FILES)


def note(text: str) -> None:
    """One line on standard error."""
    Console(stderr=True, highlight=False).print(Text(one_line(text)), soft_wrap=True)


def announce(path: Path) -> None:
    """Report on standard error that a file was written."""
    note(f"wrote {path}")

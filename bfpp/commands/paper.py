"""`bfpp paper`: the paper's figures and tables, beside ours."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.text import Text

from bfpp import options as shared
from bfpp.errors import blaming
from bfpp.paper import ITEMS
from bfpp.paper.index import write_index
from bfpp.paper.item import PaperTable
from bfpp.results import announce, output, print_json, print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp paper`."""
    parser.add_argument(
        "items",
        nargs="*",
        metavar="ITEM",
        help=f"what to make (default: all of {', '.join(ITEMS)})",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/paper"),
        metavar="DIR",
        help="folder for the files (default: out/paper)",
    )
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Make each item asked for, and a page that gathers them."""
    for name in options.items:
        if name not in ITEMS:
            raise ValueError(f"ITEM: {name!r} is not one of {', '.join(ITEMS)}")
    names = list(dict.fromkeys(options.items)) or list(ITEMS)
    console = Console(stderr=True)
    with blaming("--out"):
        options.out.mkdir(parents=True, exist_ok=True)
        made = {
            name: ITEMS[name](options.out)
            for name in track(names, "Making", console=console, disable=not sys.stderr.isatty())
        }
        index = write_index(made, options.out)
    for item in made.values():
        for path in item.files:
            announce(path)
        if item.table and not options.json:
            _print(item.table)
    announce(index)
    if options.json:
        print_json(
            {
                name: {"files": [str(path) for path in item.files], **item.record}
                for name, item in made.items()
            }
        )
    return 0


def _print(table: PaperTable) -> None:
    print_table(table.title, table.columns, table.rows)
    console = output()
    for note in table.notes:
        console.print(Text(f"* {note}"))

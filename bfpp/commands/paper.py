"""`bfpp paper`: the paper's figures and tables, next to ours."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import track
from rich.text import Text

from bfpp.api.print_figures import converted
from bfpp.options import shared
from bfpp.paper import ITEMS
from bfpp.paper.index import FROM_GRAPHS, FROM_STUDY, write_index
from bfpp.paper.item import Folder, ItemOutput, PaperTable
from bfpp.reports.pictures import add_width_argument
from bfpp.schedules import InvalidInput
from bfpp.schedules.errors import did_you_mean
from bfpp.terminal import formats
from bfpp.terminal.error_lines import blaming
from bfpp.terminal.outputs import Output, add_force_argument, add_output_folder, require_installed
from bfpp.terminal.printing import note, output, print_json, print_table

Maker = Callable[[Folder], ItemOutput]
"""Makes an item in a folder."""

FORMATS = (
    formats.SVG, formats.PDF, formats.PNG, formats.HTML, formats.MARKDOWN, formats.PAPER_JSON,
    formats.MEASUREMENTS,
)  # fmt: skip
"""Formats of items."""

ALSO = {"pdf": formats.PDF, "png": formats.PNG}
"""Formats that figures can be converted to."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp paper`."""
    parser.add_argument(
        "items",
        nargs="*",
        metavar="ITEM",
        help=f"figures and tables to make (default: all: {', '.join(ITEMS)})",
    )
    parser.add_argument(
        "--measured",
        type=Path,
        metavar="STUDY",
        help="make figures 5 to 7 from what bfpp study measured (its folder, or its cells.csv), "
        "beside its predictions",
    )
    add_output_folder(
        parser, "--out", Path("out/paper"), "folder for the files (default: out/paper)"
    )
    parser.add_argument(
        "--also",
        action="append",
        choices=tuple(ALSO),
        default=[],
        help="also write figures in this format (repeatable)",
    )
    add_width_argument(parser, "printed width of figures")
    shared.add_trust_argument(parser)
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Make each item asked for, and a page that gathers them."""
    for each in options.also:
        require_installed("--also", ALSO[each])
    if options.measured:
        items = _measured(options)
    else:
        items = {name: ITEMS[name] for name in _named(options.items, ITEMS)}
    outputs = _outputs(options.out, [*items, "index"])
    with blaming("--out"):
        for each in outputs.values():
            each.require_ours(options.force)
    with TemporaryDirectory() as folder:
        aside = Folder(Path(folder), options.width)
        console = Console(stderr=True)
        made = {
            name: _also(items[name](aside), options.also)
            for name in track(items, "Making", console=console, disable=not sys.stderr.isatty())
        }
        index = write_index(made, aside, FROM_STUDY if options.measured else FROM_GRAPHS)
        _report(made, options)
        for path in [*(path for item in made.values() for path in item.files), index]:
            with outputs[path.name].written() as place:
                shutil.copyfile(path, place)
    return 0


def _named(names: Sequence[str], known: Collection[str]) -> list[str]:
    """Those that are named, once each, or all."""
    for name in names:
        if name not in known:
            meant = did_you_mean(name, known)
            raise InvalidInput(f"ITEM: {name!r} is not one of {', '.join(known)}{meant}")
    return list(dict.fromkeys(names or known))


def _measured(options: argparse.Namespace) -> dict[str, Maker]:
    """Those that are named, or all, of the figures that a study holds; a line for what it lacks."""
    from bfpp.api.study.table import read_table
    from bfpp.paper.measured.figures import FIGURES, measured_figure

    with blaming("--measured"):
        rows = read_table(options.measured, trust=options.trust)
    figures = {name: measured_figure(name, rows) for name in _named(options.items, FIGURES)}
    lacking = [f"{name} needs {FIGURES[name].needs}" for name, each in figures.items() if not each]
    if len(lacking) == len(figures):
        raise InvalidInput(f"--measured: {options.measured}: {'; '.join(lacking)}")
    if lacking:
        note(f"bfpp paper: not drawn: {'; '.join(lacking)}")
    return {f"{name}-measured": each for name, each in figures.items() if each}


def _also(item: ItemOutput, names: Sequence[str]) -> ItemOutput:
    """The item with its figures in these formats too."""
    figures = [path for path in item.files if path.suffix == ".svg"]
    more = [converted(path, ALSO[name]) for path in figures for name in names]
    return replace(item, files=[*item.files, *more])


def _outputs(folder: Output, names: Sequence[str]) -> dict[str, Output]:
    """By name, the files that these items may be written to."""
    return {
        f"{name}{suffix}": folder.inside(f"{name}{suffix}", each)
        for name in names
        for each in FORMATS
        for suffix in each.suffixes[:1]
    }


def _report(made: Mapping[str, ItemOutput], options: argparse.Namespace) -> None:
    if options.json:
        items = {
            name: {
                "files": [str(options.out.path / path.name) for path in item.files],
                **item.record,
                **({"claims": [vars(each) for each in item.claims]} if item.claims else {}),
            }
            for name, item in made.items()
        }
        print_json({**items, "items": items})
        return
    for name, item in made.items():
        if claims := item.claims_table:
            _print(replace(claims, title=f"{name}: {claims.title[0].lower()}{claims.title[1:]}"))
        if item.table:
            _print(item.table)


def _print(table: PaperTable) -> None:
    print_table(table.title, table.columns, table.rows)
    console = output()
    for line in table.notes:
        console.print(Text(f"* {line}"))

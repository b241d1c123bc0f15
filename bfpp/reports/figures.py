"""Options that name figures for print, and their writing."""

from __future__ import annotations

import argparse

from bfpp.api.print_figures import FIGURES, WRITERS
from bfpp.terminal.number_types import length
from bfpp.terminal.outputs import Output, add_output


def add_figure(group: argparse._ActionsContainer, option: str, purpose: str) -> None:
    """An option that names a figure to write."""
    add_output(group, option, FIGURES, f"{purpose}, as .svg, .pdf or .png by its name")


def add_width_argument(group: argparse._ActionsContainer, purpose: str) -> None:
    """Add `--width`, the printed width of figures."""
    group.add_argument(
        "--width",
        type=length,
        metavar="LENGTH",
        help=f"{purpose}, such as 84mm for a column; letters keep their size (default: a page's)",
    )


def write_figure(figure: Output, drawn: str) -> None:
    """Write a figure, drawn as SVG, in the format of its name."""
    with figure.written() as path:
        WRITERS[figure.format](drawn, path)

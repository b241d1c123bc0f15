"""Timelines read from the files that a command names."""

from __future__ import annotations

import argparse
from pathlib import Path

from bfpp.errors import blaming
from traces.timeline import Timeline
from traces.timeline_file import load_timeline


def add_timeline_argument(parser: argparse.ArgumentParser, name: str, metavar: str) -> None:
    """A file of a timeline, simulated or measured."""
    parser.add_argument(
        name,
        type=Path,
        metavar=metavar,
        help="a timeline, as bfpp simulate --timeline writes it (compressed or not)",
    )


def load(path: Path, option: str) -> Timeline:
    """The timeline of a file; the option is named where the file is at fault."""
    with blaming(option):
        return load_timeline(path)

"""Options that write one timeline for other tools, and for later."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bfpp.errors import blaming
from bfpp.results import announce
from schedules.graph_file import write_graph
from traces.timeline import Timeline
from traces.timeline_file import save_timeline


@dataclass(frozen=True)
class Export:
    """A kind of file: what its option says of it, and how a timeline is written."""

    summary: str
    write: Callable[[Timeline, Path], None]


def _write_perfetto(timeline: Timeline, path: Path) -> None:
    from traces.perfetto import write_perfetto

    write_perfetto(timeline, path)


def _write_graph(timeline: Timeline, path: Path) -> None:
    path.write_text(write_graph(timeline.graph), encoding="ascii")


EXPORTS = {
    "perfetto": Export(
        "write a Chrome trace for ui.perfetto.dev (compressed if FILE ends in .gz)",
        _write_perfetto,
    ),
    "timeline": Export(
        "write the timeline in JSON, for bfpp show and bfpp diff (compressed if FILE ends in .gz)",
        save_timeline,
    ),
    "graph": Export("write the task graph in JSON, for bfpp check", _write_graph),
}


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Which files to write."""
    group = parser.add_argument_group("files for other tools")
    for name, export in EXPORTS.items():
        group.add_argument(f"--{name}", type=Path, metavar="FILE", help=export.summary)


def write_exports(options: argparse.Namespace, timeline: Timeline) -> None:
    """Write the files asked for."""
    for name, export in EXPORTS.items():
        if path := getattr(options, name):
            with blaming(f"--{name}"):
                export.write(timeline, path)
            announce(path)

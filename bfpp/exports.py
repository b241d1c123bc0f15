"""Options that write one timeline for other tools, and for later."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bfpp import formats
from bfpp.outputs import add_output
from bfpp.schedules.graph_file import write_graph
from bfpp.traces.timeline import Timeline
from bfpp.traces.timeline_file import save_timeline


@dataclass(frozen=True)
class Export:
    """A kind of file: what its option says of it, its format, and how a timeline is written."""

    summary: str
    format: formats.Format
    write: Callable[[Timeline, Path], None]


def _write_perfetto(timeline: Timeline, path: Path) -> None:
    from bfpp.traces.perfetto import write_perfetto

    write_perfetto(timeline, path)


def _write_graph(timeline: Timeline, path: Path) -> None:
    path.write_text(write_graph(timeline.graph), encoding="ascii")


EXPORTS = {
    "perfetto": Export(
        "write a Chrome trace for ui.perfetto.dev (compressed if FILE ends in .gz)",
        formats.PERFETTO,
        _write_perfetto,
    ),
    "timeline": Export(
        "write the timeline in JSON, for bfpp show and bfpp diff (compressed if FILE ends in .gz)",
        formats.TIMELINE,
        save_timeline,
    ),
    "graph": Export("write the task graph in JSON, for bfpp check", formats.GRAPH, _write_graph),
}


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Which files to write."""
    group = parser.add_argument_group("files for other tools")
    for name, export in EXPORTS.items():
        add_output(group, f"--{name}", [export.format], export.summary)


def write_exports(options: argparse.Namespace, timeline: Timeline) -> None:
    """Write the files asked for."""
    for name, export in EXPORTS.items():
        if output := getattr(options, name):
            with output.written() as path:
                export.write(timeline, path)

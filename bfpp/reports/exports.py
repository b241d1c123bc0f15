"""Options that write one timeline for other tools, and for later."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bfpp.schedules.formats.graph_json import write_graph
from bfpp.terminal import formats
from bfpp.terminal.error_lines import blaming
from bfpp.terminal.outputs import Output, add_output, add_output_folder
from bfpp.traces.formats.timeline_json import save_timeline
from bfpp.traces.timeline.timeline import Timeline


@dataclass(frozen=True)
class Export:
    """A kind of file: its help text, its format, and its writer."""

    summary: str
    format: formats.FileFormat
    write: Callable[[Timeline, Path], None]


@dataclass(frozen=True)
class FolderExport:
    """A kind of files, one a rank: their names, contents, and omissions from a timeline."""

    summary: str
    format: formats.FileFormat
    files: Callable[[Timeline], Iterator[tuple[str, bytes]]]
    lost: str


def _write_perfetto(timeline: Timeline, path: Path) -> None:
    from bfpp.traces.formats.perfetto_writing import write_perfetto

    write_perfetto(timeline, path)


def _kineto(timeline: Timeline) -> Iterator[tuple[str, bytes]]:
    from bfpp.traces.formats.kineto_writing import kineto_files

    return ((name, text.encode()) for name, text in kineto_files(timeline))


def _chakra(timeline: Timeline) -> Iterator[tuple[str, bytes]]:
    from bfpp.traces.formats.chakra import chakra_files

    return chakra_files(timeline)


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


FOLDERS = {
    "kineto": FolderExport(
        "write a trace of each rank as torch.profiler does (kineto.0.json, ...)",
        formats.KINETO,
        _kineto,
        "units and groups of collectives, blocks, buffers, and dependencies except for their order",
    ),
    "chakra": FolderExport(
        "write a Chakra execution trace of each rank (chakra.0.et, ...)",
        formats.CHAKRA,
        _chakra,
        "numbers of bytes, which a timeline does not have",
    ),
}


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of files to export."""
    group = parser.add_argument_group("files for other tools")
    for name, export in EXPORTS.items():
        add_output(group, f"--{name}", [export.format], export.summary)
    for name, folder in FOLDERS.items():
        add_output_folder(group, f"--{name}", None, folder.summary)


def write_exports(options: argparse.Namespace, timeline: Timeline) -> None:
    """Write the files asked for."""
    for name, export in EXPORTS.items():
        if output := getattr(options, name):
            with output.written() as path:
                export.write(timeline, path)
    for name, folder in FOLDERS.items():
        if output := getattr(options, name):
            _write_folder(folder, output, timeline, options.force)


def _write_folder(folder: FolderExport, output: Output, timeline: Timeline, force: bool) -> None:
    """All files of a folder, or none where one is somebody else's; and their omissions."""
    made = [(output.inside(name, folder.format), data) for name, data in folder.files(timeline)]
    for each, _ in made:
        with blaming(output.option):
            each.require_ours(force)
    for each, data in made:
        with each.written() as path:
            path.write_bytes(data)
    print(f"{output.option} leaves out {folder.lost}", file=sys.stderr)  # noqa: T201

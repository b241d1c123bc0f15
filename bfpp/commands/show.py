"""`bfpp show`: a saved timeline, simulated or measured."""

from __future__ import annotations

import argparse

from bfpp.api.saved import SavedTimeline, add_replica_argument, add_timeline_argument, load
from bfpp.options import shared
from bfpp.reports.exports import add_export_arguments, write_exports
from bfpp.reports.pictures import (
    add_picture_arguments,
    check_picture_arguments,
    pictured,
    print_text,
    write_pictures,
)
from bfpp.reports.tables import print_idle, print_replicas, print_result
from bfpp.terminal.outputs import add_force_argument
from bfpp.terminal.printing import print_json, print_table
from bfpp.traces.timeline.timeline import showing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp show`."""
    add_timeline_argument(parser, "file", "FILE", "saved timeline")
    add_replica_argument(parser)
    add_picture_arguments(parser)
    add_export_arguments(parser)
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Report, and draw."""
    check_picture_arguments(options)
    timeline = load(options.file, "FILE")
    if options.replica is not None:
        timeline = showing(timeline, options.replica)
    result = SavedTimeline(timeline)
    drawn = pictured(result)
    if options.json:
        print_json(result.record)
    else:
        print_text(options, drawn)
        print_table("Where it is from", ("", ""), result.origins)
        print_result(result)
        print_idle(result.idle)
        print_replicas(result.replicas)
    write_pictures(options, drawn, result.title)
    write_exports(options, result.timeline)
    return 0

"""`bfpp show`: a saved timeline, simulated or measured."""

from __future__ import annotations

import argparse

from bfpp.api.saved import SavedTimeline, add_timeline_argument, load
from bfpp.options import shared
from bfpp.reports.exports import add_export_arguments, write_exports
from bfpp.reports.pictures import (
    add_picture_arguments,
    check_picture_arguments,
    print_text,
    write_pictures,
)
from bfpp.reports.tables import print_idle, print_result
from bfpp.terminal.outputs import add_force_argument
from bfpp.terminal.printing import print_json, print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp show`."""
    add_timeline_argument(parser, "file", "FILE", "saved timeline")
    add_picture_arguments(parser)
    add_export_arguments(parser)
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Report, and draw."""
    check_picture_arguments(options)
    result = SavedTimeline(load(options.file, "FILE"))
    if options.json:
        print_json(result.record)
    else:
        print_text(options, [result])
        print_table("Where it is from", ("", ""), result.origins)
        print_result(result)
        print_idle(result.idle)
    write_pictures(options, [result], result.title)
    write_exports(options, result.timeline)
    return 0

"""`bfpp simulate`: predict one schedule."""

from __future__ import annotations

import argparse
from typing import Any

from rich.text import Text

from bfpp.api.pieces import in_pieces
from bfpp.api.predictions import Prediction, predict
from bfpp.options import shared
from bfpp.options.launch_notes import launch_lines, launch_of, launch_record
from bfpp.options.model import assumptions, with_assumptions
from bfpp.reports.assumptions import assumed_values
from bfpp.reports.exports import add_export_arguments, write_exports
from bfpp.reports.pictures import (
    add_memory_argument,
    add_picture_arguments,
    check_picture_arguments,
    pictured,
    print_text,
    require_memory,
    write_memory,
    write_pictures,
)
from bfpp.reports.prediction_notes import (
    print_cautions,
    print_interval,
    print_not_modelled,
    print_peak,
)
from bfpp.reports.tables import print_result
from bfpp.schedules import InvalidConfiguration
from bfpp.terminal.outputs import add_force_argument
from bfpp.terminal.parser import Parser
from bfpp.terminal.printing import output, print_json, print_table

MOMENTS = 200
"""Moments of a rank's memory that JSON has at most."""


def add_arguments(parser: Parser) -> None:
    """The options of `bfpp simulate`."""
    shared.add_schedule_argument(parser)
    shared.add_experiment_arguments(parser)
    shared.add_engine_argument(parser)
    pictures = add_picture_arguments(parser)
    pictures.add_argument(
        "--pieces",
        action="store_true",
        help="show expert dispatch and combine as tasks inside passes, in timelines",
    )
    add_memory_argument(pictures)
    add_export_arguments(parser)
    parser.add_argument(
        "--assumptions",
        action="store_true",
        help="with a model: print assumed values and their sources",
    )
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Simulate, and report."""
    check_picture_arguments(options)
    experiment = shared.experiment(options)
    require_memory(options, experiment)
    launch = launch_of(options.schedule, shared.given(options))
    assumed = [*assumptions(options), *(launch.assumed if launch else ())]
    if options.assumptions and experiment.software is None:
        raise InvalidConfiguration("assumptions", "needs --model and --cluster")
    values = assumed_values(experiment, shared.given(options)) if options.assumptions else []
    result = predict(experiment, options.engine)
    drawn = in_pieces(result) if options.pieces else result
    panels = pictured(drawn)
    if options.json:
        record = result.record | _memory_record(result)
        if values:
            record["assumptions"] = [each._asdict() for each in values]
        print_json(with_assumptions(record | launch_record(launch), assumed))
    else:
        print_text(options, panels)
        print_result(result)
        print_peak(result)
        print_cautions([result])
        print_interval(result)
        print_not_modelled(result)
        if launch:
            output().print(Text("".join(f"{line}\n" for line in launch_lines(launch))))
        if values:
            print_table("Assumed values", ("", "value", "from"), values)
    write_pictures(options, panels, result.title)
    write_memory(options, result)
    write_exports(options, drawn.whole_timeline)
    return 0


def _memory_record(result: Prediction) -> dict[str, Any]:
    """Memory of each rank's devices over the step, thinned to its highest moments."""
    if not result.physical:
        return {}
    curves = (curve.thinned(MOMENTS) for curve in result.memory_curves)
    return {
        "memory_over_time": [
            {
                "rank": curve.rank,
                "time": [float(f"{time:.6g}") for time in curve.time.tolist()],
                "gb": [float(f"{total:.6g}") for total in curve.total.tolist()],
            }
            for curve in curves
        ]
    }

"""`bfpp orders`: print each rank's compute order."""

from __future__ import annotations

import argparse
import sys

from bfpp import options as shared
from bfpp.results import print_json
from bfpp.schedules import find_schedule
from bfpp.schedules.torch_format import write_orders


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp orders`."""
    shared.add_schedule_argument(parser)
    shared.add_layout_arguments(parser)
    parser.add_argument(
        "--format",
        choices=["torch"],
        default="torch",
        help="the words of torch.distributed.pipelining: stage, F or B (or the halves I and W), "
        "micro-batch (default: torch)",
    )
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Print one line a rank."""
    schedule = find_schedule(options.schedule)
    lines = write_orders(schedule.orders(shared.layout(options, schedule)))
    if options.json:
        print_json(
            {"schedule": schedule.name, "orders": [row.split(",") for row in lines.splitlines()]}
        )
    else:
        sys.stdout.write(lines if lines.endswith("\n") else lines + "\n")
    return 0

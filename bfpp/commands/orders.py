"""`bfpp orders`: print each rank's compute order."""

from __future__ import annotations

import argparse
import sys

from bfpp import options as shared
from bfpp.parser import Parser
from bfpp.results import print_json
from bfpp.schedules.steps import in_units
from bfpp.schedules.torch_actions import write_actions
from bfpp.schedules.torch_format import write_orders


def add_arguments(parser: Parser) -> None:
    """The options of `bfpp orders`."""
    shared.add_schedule_argument(parser)
    shared.add_layout_arguments(parser)
    shared.add_communication_arguments(parser)
    parser.add_argument(
        "--format",
        choices=["torch", "torch-actions"],
        default="torch",
        help="actions of torch.distributed.pipelining: compute only (stage, F or B or the halves I "
        "and W, micro-batch), or with communication, which its runtime loads as compute_comms "
        "(default: torch)",
    )
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Print one line a rank."""
    configuration = shared.pipeline(options).configuration
    schedule, layout = configuration.schedule, configuration.layout
    if options.format == "torch":
        lines = write_orders([in_units(order, layout) for order in schedule.orders(layout)])
    else:
        lines = write_actions(configuration.graph())
    if options.json:
        print_json(
            {"schedule": schedule.name, "orders": [row.split(",") for row in lines.splitlines()]}
        )
    else:
        sys.stdout.write(f"# slices = {layout.slices}\n" if layout.slices > 1 else "")
        sys.stdout.write(lines if lines.endswith("\n") else lines + "\n")
    return 0

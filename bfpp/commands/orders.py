"""`bfpp orders`: print each rank's compute order, or write it as PyTorch loads it."""

from __future__ import annotations

import argparse
import sys

from bfpp.launchers.releases import add_release_argument, release_of
from bfpp.options import shared
from bfpp.schedules.formats.torch_actions import write_actions
from bfpp.schedules.formats.torch_csv import write_orders
from bfpp.schedules.formats.torch_waits import SINCE
from bfpp.schedules.orders.steps import in_units
from bfpp.terminal.formats import END_OF_ORDERS, ORDERS
from bfpp.terminal.outputs import add_force_argument, add_output
from bfpp.terminal.parser import Parser
from bfpp.terminal.printing import note, print_json


def add_arguments(parser: Parser) -> None:
    """The options of `bfpp orders`."""
    shared.add_schedule_argument(parser)
    shared.add_layout_arguments(parser)
    parser.open_with("pp", "microbatches", "loops", "format", "out")
    shared.add_communication_arguments(parser)
    parser.add_argument(
        "--format",
        choices=["torch", "torch-actions"],
        default="torch",
        help="actions of torch.distributed.pipelining: compute only (stage, F or B or the halves I "
        "and W, micro-batch), or with communication, which its runtime loads as compute_comms "
        "(default: torch)",
    )
    add_release_argument(parser)
    add_output(parser, "--out", [ORDERS], "write them to a file, for PyTorch or as SCHEDULE")
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Print one line a rank, and write the same."""
    configuration = shared.pipeline(options).configuration
    schedule, layout = configuration.schedule, configuration.layout
    record: dict[str, object] = {"schedule": schedule.name}
    if options.format == "torch":
        lines = write_orders([in_units(order, layout) for order in schedule.orders(layout)])
    else:
        release = release_of("torch", options.release)
        record["release"] = release.name
        lines = write_actions(configuration.graph(), waits=release.number >= SINCE)
        note(f"bfpp orders: actions of {release}")
    text = f"# slices = {layout.slices}\n{lines}" if layout.slices > 1 else lines
    if options.json:
        print_json(record | {"orders": [row.split(",") for row in lines.splitlines()]})
    else:
        sys.stdout.write(text)
    if options.out:
        with options.out.written() as path:
            path.write_bytes(text.removesuffix("\n").encode() + END_OF_ORDERS)
    return 0

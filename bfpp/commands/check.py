"""`bfpp check`: check orders or a task graph from a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bfpp import options as shared
from bfpp.errors import blaming, one_line
from bfpp.results import print_json
from bfpp.schedules.graph_file import read_graph
from bfpp.schedules.order_validity import order_violations
from bfpp.schedules.reading import read_file, read_stream
from bfpp.schedules.torch_format import read_orders
from bfpp.schedules.validity import Kind, violations

INVALID = 1


Found = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""What is wrong, and what is right but not as the rules prescribe."""


def _check_orders(text: bytes) -> Found:
    return [asdict(violation) for violation in order_violations(read_orders(text))], []


def _check_graph(text: bytes) -> Found:
    found = violations(read_graph(text))
    wrong, remarks = (
        [asdict(each) for each in found if each.kind is kind] for kind in (Kind.WRONG, Kind.REMARK)
    )
    return wrong, remarks


FORMATS: dict[str, Callable[[bytes], Found]] = {
    "torch": _check_orders,
    "graph": _check_graph,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp check`."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the file to check; - for input")
    parser.add_argument(
        "--format",
        choices=list(FORMATS),
        help="compute orders in PyTorch's words, or a task graph in JSON, as `bfpp simulate "
        "--graph` writes it (default: graph if the file begins with a brace, else torch)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="take a graph as invalid, too, that computes right and yet gathers or reduces more or "
        "less often than its sharding prescribes",
    )
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Print what is wrong, then what is remarked; exit with 1 unless the file is valid."""
    is_input = str(options.file) == "-"
    with blaming("FILE"):
        text = read_stream(sys.stdin.buffer) if is_input else read_file(options.file)
    guess = "graph" if text.lstrip().startswith(b"{") else "torch"
    wrong, remarks = FORMATS[options.format or guess](text)
    valid = not wrong and not (options.strict and remarks)
    if options.json:
        print_json({"valid": valid, "violations": wrong, "remarks": remarks})
    else:
        for each in wrong:
            sys.stdout.write(one_line(f"{each['rule']}: {each['message']}") + "\n")
        for each in remarks:
            sys.stdout.write(one_line(f"remark: {each['rule']}: {each['message']}") + "\n")
        sys.stdout.write("valid\n" if valid else "invalid\n")
    return 0 if valid else INVALID

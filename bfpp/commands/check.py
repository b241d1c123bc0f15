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
from bfpp.schedules.validity import violations

INVALID = 1


def _check_orders(text: bytes) -> list[dict[str, Any]]:
    return [asdict(violation) for violation in order_violations(read_orders(text))]


def _check_graph(text: bytes) -> list[dict[str, Any]]:
    return [asdict(violation) for violation in violations(read_graph(text))]


FORMATS: dict[str, Callable[[bytes], list[dict[str, Any]]]] = {
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
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Print what is wrong; exit with 1 if anything is."""
    is_input = str(options.file) == "-"
    with blaming("FILE"):
        text = read_stream(sys.stdin.buffer) if is_input else read_file(options.file)
    guess = "graph" if text.lstrip().startswith(b"{") else "torch"
    found = FORMATS[options.format or guess](text)
    if options.json:
        print_json({"valid": not found, "violations": found})
    else:
        for violation in found:
            sys.stdout.write(one_line(f"{violation['rule']}: {violation['message']}") + "\n")
        sys.stdout.write("invalid\n" if found else "valid\n")
    return INVALID if found else 0

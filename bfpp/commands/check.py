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
from bfpp.schedules import P2P, Communication, Deadlock, InvalidConfiguration, lower
from bfpp.schedules.graph_file import read_graph
from bfpp.schedules.lowering.posting import WrongPosts
from bfpp.schedules.order_validity import OrderViolation, order_violations
from bfpp.schedules.reading import read_file, read_stream
from bfpp.schedules.torch_format import layout_of, read_orders, read_posts
from bfpp.schedules.validity import Kind, violations

INVALID = 1


Findings = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""What is wrong, and what is right but not as the rules prescribe."""


def _check_orders(text: bytes, communication: Communication) -> Findings:
    orders, posts = read_orders(text), read_posts(text)
    broken = order_violations(orders)
    if not broken and (any(posts) or communication.p2p is not P2P.CHANNELS):
        try:
            lower(orders, layout_of(orders), communication, posts=posts)
        except Deadlock as error:
            broken = [OrderViolation("deadlock", error.reason.removeprefix("deadlock: "))]
        except WrongPosts as error:
            broken = [OrderViolation("posts", error.reason)]
    return [asdict(violation) for violation in broken], []


def _check_graph(text: bytes, communication: Communication) -> Findings:
    if communication.p2p is not P2P.CHANNELS:
        raise InvalidConfiguration("p2p", "a task graph already says how its transfers are posted")
    found = violations(read_graph(text))
    wrong, remarks = (
        [asdict(each) for each in found if each.kind is kind] for kind in (Kind.WRONG, Kind.REMARK)
    )
    return wrong, remarks


FORMATS: dict[str, Callable[[bytes, Communication], Findings]] = {
    "torch": _check_orders,
    "graph": _check_graph,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp check`."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="file to check; - for standard input"
    )
    parser.add_argument(
        "--format",
        choices=list(FORMATS),
        help="compute orders in PyTorch's format, or a task graph in JSON from `bfpp simulate "
        "--graph` (default: graph if the file begins with a brace, else torch)",
    )
    shared.add_posting_arguments(parser)
    parser.add_argument(
        "--strict",
        action="store_true",
        help="also fail for a graph that computes correctly but gathers or reduces more or less "
        "often than its sharding prescribes",
    )
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Print what is wrong, then what is remarked; exit with 1 unless the file is valid."""
    is_input = str(options.file) == "-"
    with blaming("FILE"):
        text = read_stream(sys.stdin.buffer) if is_input else read_file(options.file)
    guess = "graph" if text.lstrip().startswith(b"{") else "torch"
    wrong, remarks = FORMATS[options.format or guess](text, shared.posting(options))
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

"""`bfpp check`: check a schedule, or the orders or the task graph of a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from bfpp.options import shared
from bfpp.options.experiment_file import experiment_of_file
from bfpp.options.named_experiments import holds_experiment
from bfpp.schedules import (
    P2P,
    Configuration,
    Deadlock,
    InvalidConfiguration,
    TaskGraph,
    lower,
    registered_schedules,
)
from bfpp.schedules.families.registry import DEFAULT_SCHEDULES, ORDERS, canonical_name
from bfpp.schedules.formats.graph_json import read_graph
from bfpp.schedules.formats.python_file import MARK
from bfpp.schedules.formats.torch_csv import (
    layout_of,
    ranks_of,
    read_orders,
    read_posts,
    read_values,
)
from bfpp.schedules.formats.torch_waits import SINCE, has_waits, wait_violations
from bfpp.schedules.lowering.posting import WrongPosts
from bfpp.schedules.orders.validity import OrderViolation, order_violations
from bfpp.schedules.reading import exists, read_file, read_stream
from bfpp.schedules.validity import Kind, violations
from bfpp.terminal.error_lines import blaming, one_line
from bfpp.terminal.formats import JSON
from bfpp.terminal.parser import Parser
from bfpp.terminal.printing import print_json

INVALID = 1

POSTING = ("p2p", "eager")
"""Posting of transfers: options override a file of orders."""


class Findings(NamedTuple):
    """Records of violations, and of deviations from the rules that are valid.

    Of actions with communication also which releases of PyTorch read them.
    """

    wrong: list[dict[str, Any]]
    remarks: list[dict[str, Any]]
    release: str | None = None


RELEASES = {
    True: f"torch {SINCE[0]}.{SINCE[1]} and later",
    False: f"torch before {SINCE[0]}.{SINCE[1]}",
}
"""Releases of PyTorch whose actions have waits, or none."""


def _check_orders(path: str, text: bytes, given: Mapping[str, Any]) -> Findings:
    orders, posts = read_orders(text), read_posts(text)
    rows = [row for _, row in ranks_of(text)]
    said = {name: each for name, each in read_values(text).items() if name in POSTING}
    base = experiment_of_file(path, {"schedule": DEFAULT_SCHEDULES[0], **said})
    communication = base.changed(**given).communication
    broken = order_violations(orders)
    if not broken and (any(posts) or communication.p2p is not P2P.CHANNELS):
        try:
            lower(orders, layout_of(orders), communication, posts=posts)
        except tuple(LOWERED) as error:
            broken = [_of_lowering(error)]
    waits = has_waits(rows)
    if waits:
        broken += wait_violations(rows)
    release = None if waits is None else RELEASES[waits]
    return Findings([asdict(violation) for violation in broken], [], release)


def _check_file_of_graph(path: str, text: bytes, given: Mapping[str, Any]) -> Findings:
    del path
    for name in given:
        raise InvalidConfiguration(name, "a task graph already says how its transfers are posted")
    return _check_graph(read_graph(text))


def _check_graph(graph: TaskGraph) -> Findings:
    findings = violations(graph)
    wrong, remarks = (
        [asdict(each) for each in findings if each.kind is kind]
        for kind in (Kind.WRONG, Kind.REMARK)
    )
    return Findings(wrong, remarks)


def _check_schedule(configuration: Configuration) -> Findings:
    """Its orders, and then its graph; orders of copies of stages by what follows from them."""
    orders = configuration.schedule.orders(configuration.layout)
    if not configuration.layout.copies and (broken := order_violations(orders)):
        return Findings([asdict(each) for each in broken], [])
    try:
        graph = configuration.graph()
    except tuple(LOWERED) as error:
        return Findings([asdict(_of_lowering(error))], [])
    return _check_graph(graph)


def _of_lowering(error: InvalidConfiguration) -> OrderViolation:
    rule = LOWERED[type(error)]
    return OrderViolation(rule, error.reason.removeprefix(f"{rule}: "))


LOWERED: dict[type[InvalidConfiguration], str] = {Deadlock: "deadlock", WrongPosts: "posts"}
"""The rules that only lowering shows to be broken, by what it raises."""


FORMATS: dict[str, Callable[[str, bytes, Mapping[str, Any]], Findings]] = {
    "torch": _check_orders,
    "graph": _check_file_of_graph,
}
"""The check of a file's content, with the options of posting that are given."""


def add_arguments(parser: Parser) -> None:
    """The options of `bfpp check`."""
    shared.add_schedule_argument(
        parser, "FILE.json: a task graph", "-: orders or a task graph from standard input"
    )
    shared.add_layout_arguments(parser)
    parser.open_with("pp", "microbatches", "loops", "p2p", "format", "strict")
    shared.add_communication_arguments(parser)
    parser.add_argument(
        "--format",
        choices=list(FORMATS),
        help="of a file: compute orders in PyTorch's format, or a task graph in JSON from `bfpp "
        "simulate --graph` (default: graph if the file begins with a brace, else torch)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="also fail for a graph that computes correctly but gathers or reduces more or less "
        "often than its sharding prescribes",
    )
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Print what is wrong, then what is remarked; exit with 1 unless all is valid."""
    if options.format or _is_content(options.schedule):
        wrong, remarks, release = _check_file(options)
    else:
        wrong, remarks, release = _check_schedule(shared.pipeline(options).configuration)
    valid = not wrong and not (options.strict and remarks)
    if options.json:
        record = {"valid": valid, "violations": wrong, "remarks": remarks}
        print_json(record | ({"release": release} if release else {}))
    else:
        for each in wrong:
            sys.stdout.write(one_line(f"{each['rule']}: {each['message']}") + "\n")
        for each in remarks:
            sys.stdout.write(one_line(f"remark: {each['rule']}: {each['message']}") + "\n")
        sys.stdout.write("valid\n" if valid else "invalid\n")
        if release:
            sys.stdout.write(f"actions of {release}\n")
    return 0 if valid else INVALID


def _is_content(source: str) -> bool:
    """True if the content of a file is to be checked, which other commands would refuse."""
    if (
        canonical_name(source) in registered_schedules()
        or MARK in source
        or holds_experiment(source)
    ):
        return False
    return source == "-" or source.endswith((ORDERS, *JSON)) or exists(Path(source))


def _check_file(options: argparse.Namespace) -> Findings:
    given = shared.given(options)
    for name in given:
        if name not in POSTING:
            raise InvalidConfiguration(name, "is decided by the file")
    with blaming("FILE"):
        is_input = options.schedule == "-"
        text = read_stream(sys.stdin.buffer) if is_input else read_file(Path(options.schedule))
    guess = "graph" if text.lstrip().startswith(b"{") else "torch"
    return FORMATS[options.format or guess](options.schedule, text, given)

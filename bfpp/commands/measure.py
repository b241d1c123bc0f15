"""`bfpp measure`: what this machine's kernels, host and links take, as a cluster file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from bfpp import options as shared
from bfpp.cluster_files import cluster_text
from bfpp.errors import blaming
from bfpp.formats import CLUSTER
from bfpp.outputs import add_force_argument, add_output
from bfpp.results import print_json, print_table
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.calibration import Calibration, calibrate
from bfpp.sim.cluster import Cluster, load_cluster
from bfpp.sim.measured_kernels import Row

LIKE = {
    "GB300": "gb300-nvl72",
    "GB200": "gb200-nvl72",
    "B300": "dgx-b300",
    "B200": "dgx-b200",
    "H200": "dgx-h200",
    "H100": "dgx-h100",
    "H800": "h800-3200g",
    "A100-SXM4-40GB": "dgx-a100-40gb",
    "A100": "dgx-a100",
    "V100": "dgx1-v100",
}
"""The preset that says what is not measured of a device, by what its name holds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp measure`."""
    parser.add_argument(
        "--device",
        default="cuda",
        metavar="NAME",
        help="torch's name of the device that is measured: cuda, cuda:1, cpu (default: cuda)",
    )
    parser.add_argument(
        "--like",
        metavar="NAME|FILE",
        help="the cluster that has what is not measured: peaks, memory bandwidth, networks "
        "(default: a preset with such GPUs)",
    )
    parser.add_argument("--quick", action="store_true", help="fewer shapes and sizes, less exact")
    parser.add_argument(
        "--members",
        type=shared.whole_number,
        metavar="N",
        help="measure collectives among N devices (default: all GPUs of this machine; with one, "
        "links are those of --like)",
    )
    parser.add_argument(
        "--simumax",
        type=Path,
        metavar="FILE",
        help="take the measurements of a system file of SimuMax, in place of measuring",
    )
    add_output(parser, "--out", [CLUSTER], "write the cluster, in TOML", required=True)
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, fit, report, and write."""
    if options.simumax is not None:
        cluster, rows, about = _of_simumax(options)
    else:
        cluster, rows, about = _of_device(options)
    found = calibrate(cluster, rows)
    if options.json:
        print_json(_record(found, rows, about))
    else:
        _print(found, rows)
    with options.out.written() as path:
        path.write_text(cluster_text(found.cluster, _lines(about)), encoding="utf-8")
    return 0


About = dict[str, str | int]


def _of_simumax(options: argparse.Namespace) -> tuple[Cluster, list[Row], About]:
    """A cluster, and the measurements of it that a system file holds."""
    from bfpp.sim.simumax import read_system

    with blaming("--simumax"):
        system = read_system(options.simumax)
        like = _like(options, system.title)
        cluster, rows = system.cluster(like), list(system.rows())
    return cluster, rows, {"SimuMax": system.title, "like": like.name}


def _of_device(options: argparse.Namespace) -> tuple[Cluster, list[Row], About]:
    """A cluster, and what is measured of it here."""
    from bfpp.executor import microbenchmarks

    device = microbenchmarks.device_of(options.device)
    about = microbenchmarks.about_device(device)
    like = _like(options, str(about["device"]))
    design = microbenchmarks.design_of(device, options.quick)
    members = options.members or microbenchmarks.members_of(device)
    with _progress(options) as tell:
        rows: list[Row] = []
        for row in microbenchmarks.measure(device, design):
            tell(row["kind"])
            rows.append(row)
        if members > 1:
            tell("collectives")
            rows += microbenchmarks.measure_links(device, design, members)
    own = like.device
    own = replace(
        own,
        memory=int(about.get("memory", own.memory)),
        multiprocessors=int(about.get("multiprocessors", own.multiprocessors)),
    )
    about |= {"members": members, "like": like.name}
    return replace(like, device=own), rows, about


def _like(options: argparse.Namespace, device: str) -> Cluster:
    """The cluster that says what is not measured."""
    fitting = (name for part, name in LIKE.items() if part.lower() in device.lower())
    name = options.like or next(fitting, None)
    if name is None:
        raise InvalidConfiguration("like", f"must be given: no preset has GPUs like {device!r}")
    with blaming("--like"):
        return load_cluster(name)


@contextmanager
def _progress(options: argparse.Namespace) -> Iterator[Callable[[str], None]]:
    console = Console(stderr=True)
    if options.json or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield lambda kind: status.update(f"measuring: {kind}")


def _lines(about: About) -> list[str]:
    """What the file says of where it is from."""
    facts = ", ".join(f"{name} {value}" for name, value in about.items() if name != "like")
    return [
        f"Fitted by bfpp measure on {date.today()} to measurements of {facts}.",
        f"What is not among the deviations below is as in {about['like']}.",
    ]


# What is told

Group = tuple[str, ...]


def _group(row: Row) -> Group:
    """What measurements have in common whose errors are told together."""
    detail = ("name", "pass", "way", "library", "precision")
    words = [str(row[key]) for key in detail if key in row]
    if row["kind"] == "attention":
        words.append("backward" if row["backward"] else "forward")
    return (row["kind"], *words)


@dataclass(frozen=True)
class Errors:
    """Of measurements of a group, by how much predictions are too long or too short."""

    measurements: int
    mean: float
    bias: float
    worst: float


def _errors(found: Calibration, rows: Sequence[Row]) -> dict[Group, Errors]:
    """By group, of all that is fitted."""
    groups: dict[Group, list[float]] = {}
    for row, ratio in zip(rows, found.ratios, strict=True):
        if ratio is not None:
            groups.setdefault(_group(row), []).append(ratio - 1)
    return {
        group: Errors(len(each), fmean(map(abs, each)), fmean(each), max(each, key=abs))
        for group, each in groups.items()
    }


def _record(found: Calibration, rows: Sequence[Row], about: About) -> dict[str, Any]:
    return {
        "about": about,
        "constants": [
            {"name": ".".join(each.path), "value": each.value, "deviation": each.deviation}
            for each in found.constants
        ],
        "measurements": [
            {**row, "predicted_over_measured": ratio}
            for row, ratio in zip(rows, found.ratios, strict=True)
        ],
    }


def _print(found: Calibration, rows: Sequence[Row]) -> None:
    print_table(
        "Constants",
        ("constant", "value", "standard error"),
        [
            (".".join(each.path), f"{each.value:.4g}", f"{100 * each.deviation:.1f} %")
            for each in found.constants
        ],
    )
    print_table(
        "Predicted against measured",
        ("", "measurements", "mean error", "bias", "worst"),
        [
            (
                ", ".join(group),
                str(each.measurements),
                f"{100 * each.mean:.1f} %",
                f"{100 * each.bias:+.1f} %",
                f"{100 * each.worst:+.1f} %",
            )
            for group, each in _errors(found, rows).items()
        ],
    )

"""`bfpp measure`: a cluster file with constants fitted to this machine's kernels and links."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

from bfpp.api.running.jobs import fail, require_torch
from bfpp.options import shared
from bfpp.options.cluster_files import cluster_text
from bfpp.options.cluster_notes import note_doubts
from bfpp.options.running.measuring import About, Measured, of_device, of_system, progress
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.measurements.calibration import Calibration, calibrate
from bfpp.sim.measurements.measured_kernels import Row
from bfpp.terminal.formats import CLUSTER
from bfpp.terminal.number_types import whole_number
from bfpp.terminal.outputs import add_force_argument, add_output
from bfpp.terminal.printing import print_json, print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp measure`."""
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="torch device to measure: cuda, cuda:1, cpu (default: cuda)",
    )
    parser.add_argument(
        "--like",
        metavar="NAME|FILE",
        help="cluster that provides what is not measured: peak throughput, memory bandwidth, "
        "networks (default: a preset with the same GPUs)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer shapes and sizes: faster, less accurate"
    )
    parser.add_argument(
        "--members",
        type=whole_number,
        metavar="N",
        help="measure collectives among N devices (default: torchrun's processes, or all GPUs of "
        "this machine; with one, links are taken from --like)",
    )
    parser.add_argument(
        "--simumax",
        type=Path,
        metavar="FILE",
        help="use the measurements in a SimuMax system file instead of measuring",
    )
    add_output(parser, "--out", [CLUSTER], "write the cluster to a TOML file", required=True)
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Measure or read, then fit, print and write."""
    if options.simumax is not None:
        return _report(_of_system(options), options)
    require_torch()
    from bfpp.executor.processes import RunFailed

    try:
        measured = _of_device(options)
    except RunFailed as error:
        return fail("measure", error)
    if measured is None:  # a process of torchrun's that is not the first
        return 0
    return _report(measured, options)


def _report(measured: Measured, options: argparse.Namespace) -> int:
    """Fit, print, and write."""
    note_doubts(options.command, measured.cluster.doubts)
    calibration = calibrate(measured.cluster, measured.rows)
    if options.json:
        print_json(_record(calibration, measured))
    else:
        _print(calibration, measured.rows)
    with options.out.written() as path:
        path.write_text(cluster_text(calibration.cluster, _lines(measured.about)), encoding="utf-8")
    return 0


def _of_system(options: argparse.Namespace) -> Measured:
    for name in ("device", "quick", "members"):
        if getattr(options, name):
            raise InvalidConfiguration(
                "simumax", f"is read instead of measuring: not with --{name}"
            )
    return of_system(options.simumax, options.like)


def _of_device(options: argparse.Namespace) -> Measured | None:
    device = options.device or "cuda"
    with progress(options) as report:
        return of_device(device, options.like, options.quick, options.members, report)


def _lines(about: About) -> list[str]:
    """The comments at the head of the file: its source."""
    facts = ", ".join(f"{name} {value}" for name, value in about.items() if name != "like")
    return [
        f"Fitted by bfpp measure on {date.today()} to measurements of {facts}.",
        f"What is not among the deviations below is as in {about['like']}.",
    ]


# What is printed

Group = tuple[str, ...]


def _group(row: Row) -> Group:
    """The group that a measurement's error is reported in."""
    detail = ("name", "pass", "way", "library", "precision")
    words = [str(row[key]) for key in detail if key in row]
    if row["kind"] == "attention":
        words.append("backward" if row["backward"] else "forward")
    return (row["kind"], *words)


@dataclass(frozen=True)
class Errors:
    """Relative errors of the predictions of a group of measurements."""

    measurements: int
    mean: float
    bias: float
    worst: float


def _errors(calibration: Calibration, rows: Sequence[Row]) -> dict[Group, Errors]:
    """Errors by group, for all measurements with a prediction."""
    groups: dict[Group, list[float]] = {}
    for row, ratio in zip(rows, calibration.ratios, strict=True):
        if ratio is not None:
            groups.setdefault(_group(row), []).append(ratio - 1)
    return {
        group: Errors(len(each), fmean(map(abs, each)), fmean(each), max(each, key=abs))
        for group, each in groups.items()
    }


def _record(calibration: Calibration, measured: Measured) -> dict[str, Any]:
    return {
        "about": measured.about,
        "constants": [
            {"name": ".".join(each.path), "value": each.value, "deviation": each.deviation}
            for each in calibration.constants
        ],
        "measurements": [
            {**row, "predicted_over_measured": ratio}
            for row, ratio in zip(measured.rows, calibration.ratios, strict=True)
        ],
    }


def _print(calibration: Calibration, rows: Sequence[Row]) -> None:
    print_table(
        "Constants",
        ("constant", "value", "standard error"),
        [
            (".".join(each.path), f"{each.value:.4g}", f"{100 * each.deviation:.1f} %")
            for each in calibration.constants
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
            for group, each in _errors(calibration, rows).items()
        ],
    )

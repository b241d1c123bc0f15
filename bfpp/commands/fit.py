"""`bfpp fit`: fit the constants of clusters and implementations to a table of measurements."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from bfpp.api.study.table import read_rows
from bfpp.options import shared
from bfpp.sim.measurements.fit import Fit, Numbers, constants_text, fit, fits, too_few
from bfpp.sim.measurements.fit import Progress as Tell
from bfpp.sim.measurements.measured_tables import COLUMNS_IN_WORDS
from bfpp.sim.measurements.sites import fit_sites, sites_text
from bfpp.sim.measurements.validation import Measurement
from bfpp.terminal.error_lines import blaming
from bfpp.terminal.formats import CONSTANTS
from bfpp.terminal.outputs import add_force_argument, add_output
from bfpp.terminal.printing import print_json, print_table

FACTORS = ("cluster", "runs", "factor", "deviation before", "and after")
COLUMNS = ("constant", "value", "standard error", "unit", "determined")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp fit`."""
    parser.epilog = COLUMNS_IN_WORDS
    parser.add_argument(
        "table", type=Path, metavar="TABLE.csv", help="measured configurations, one per row"
    )
    add_output(parser, "--out", [CONSTANTS], "write the constants as TOML, for --constants")
    parser.add_argument(
        "--no-cross-validation",
        action="store_true",
        help="skip the cross-validation, which leaves out each method of each table in turn",
    )
    shared.add_trust_argument(parser)
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Fit, report, and write the constants."""
    with blaming("TABLE.csv"):
        rows = read_rows(options.table, trust=options.trust)
        few = too_few(rows)
    if few:
        return _run_few(options, rows)
    with _progress(1 if options.no_cross_validation else fits(rows)) as progress:
        fitted = fit(rows, not options.no_cross_validation, progress)
    if options.json:
        print_json(_record(fitted, rows))
    else:
        _print(fitted, rows)
    if options.out:
        with options.out.written() as path:
            path.write_text(constants_text(fitted, options.table.name), encoding="utf-8")
    return 0


def _run_few(options: argparse.Namespace, rows: list[Measurement]) -> int:
    """Fit one factor of each cluster, which a single run can."""
    fits = fit_sites(rows)
    if options.json:
        print_json({"sites": [each.record for each in fits]})
    else:
        cells = [
            (
                each.cluster,
                str(each.runs),
                f"{each.site.factor:.3f}",
                f"{100 * each.before:.1f} %",
                f"{100 * each.site.deviation:.1f} %",
            )
            for each in fits
        ]
        print_table("Runs too few for constants: a factor of passes' seconds", FACTORS, cells)
    if options.out:
        with options.out.written() as path:
            path.write_text(sites_text(fits, options.table.name), encoding="utf-8")
    return 0


@contextmanager
def _progress(total: int) -> Iterator[Tell | None]:
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        job = bar.add_task("fitting", total=total)
        started = 0

        def advance(what: str) -> None:
            nonlocal started
            bar.update(job, description=f"fitting {what}", completed=started)
            started += 1

        yield advance


def _mean(errors: Numbers) -> float:
    return float(100 * np.abs(errors).mean())


def _by_group(rows: list[Measurement]) -> list[tuple[tuple[str, str], Numbers]]:
    groups = sorted({row.group for row in rows})
    return [(group, np.array([row.group == group for row in rows])) for group in groups]


def _record(fitted: Fit, rows: list[Measurement]) -> dict[str, object]:
    record: dict[str, object] = {
        "constants": [
            {
                "name": each.parameter.name,
                "value": each.value,
                "standard_error": each.standard_error if np.isfinite(each.standard_error) else None,
                "unit": each.parameter.unit,
                "determined": each.determined,
            }
            for each in fitted.constants
        ],
        "throughput_mape": _mean(fitted.errors),
        "residuals": [100 * error for error in fitted.errors.tolist()],
        "groups": [
            {
                "group": list(group),
                "rows": int(inside.sum()),
                "error": _mean(fitted.errors[inside]),
                "left_out": None if fitted.left_out is None else _mean(fitted.left_out[inside]),
            }
            for group, inside in _by_group(rows)
        ],
    }
    if fitted.left_out is not None:
        record["cross_validated_mape"] = _mean(fitted.left_out)
    return record


def _print(fitted: Fit, rows: list[Measurement]) -> None:
    constants = [
        (
            each.parameter.name,
            f"{each.value:.4g}",
            f"{each.standard_error:.2g}",
            each.parameter.unit,
            "yes" if each.determined else "no: the prior",
        )
        for each in fitted.constants
    ]
    print_table("Constants", COLUMNS, constants)
    groups = [(("all", ""), np.ones(len(rows), dtype=bool)), *_by_group(rows)]
    errors = [
        (
            " ".join(group),
            str(int(inside.sum())),
            f"{_mean(fitted.errors[inside]):.1f} %",
            f"{100 * np.abs(fitted.errors[inside]).max():.1f} %",
            "" if fitted.left_out is None else f"{_mean(fitted.left_out[inside]):.1f} %",
        )
        for group, inside in groups
    ]
    columns = ("throughput", "rows", "mean error", "largest", "mean if left out")
    print_table("Errors", columns, errors)

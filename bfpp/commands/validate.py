"""`bfpp validate`: predict measured configurations, and compare."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bfpp.api.study.table import read_rows
from bfpp.options import shared
from bfpp.options.cluster_notes import doubts_of, note_doubts
from bfpp.reports.pictures import add_figure, write_figure
from bfpp.sim.cluster.constants import load_constants
from bfpp.sim.costs.measured.profile import load_profile
from bfpp.sim.experiment.values import OPTIONS
from bfpp.sim.measurements.measured_tables import COLUMNS_IN_WORDS
from bfpp.sim.measurements.published import sources, table_path
from bfpp.sim.measurements.validation import (
    ANY_MEMORY,
    Comparison,
    compare,
    coverage,
    mean_absolute_error,
)
from bfpp.terminal.error_lines import blaming
from bfpp.terminal.outputs import Output, add_force_argument
from bfpp.terminal.printing import counted, print_json, print_table
from bfpp.traces.timeline.units import in_words

COLUMNS = (
    "configuration", "batch", "pp x tp x dp", "micro-batches x size", "loops", "sharding",
)  # fmt: skip


class Value(NamedTuple):
    """A compared value: its column, its title in averages, and the format of its numbers."""

    column: str
    title: str
    shown: Callable[[float], str]


COMPARED = {
    "step_seconds": Value("step time", "step time", in_words),
    "tflops_per_gpu": Value("TFLOP/s", "throughput", "{:.1f}".format),
    ANY_MEMORY: Value("memory", "memory", "{:.1f}".format),
}


PRICED_BY: dict[str, Callable[[str], object]] = {
    "constants": load_constants,
    "profile": load_profile,
}
"""Options that all rows have, and how their files are read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp validate`."""
    parser.epilog = COLUMNS_IN_WORDS
    parser.add_argument(
        "table",
        type=table_path,
        metavar="TABLE.csv",
        help="measured configurations, one per row; the folder of a study; or published ones: "
        f"{', '.join(sources())}",
    )
    priced_by = parser.add_mutually_exclusive_group()
    priced_by.add_argument(
        "--constants",
        metavar="FILE",
        help="constants from bfpp fit --out (default: as shipped)",
    )
    priced_by.add_argument("--profile", metavar="FILE", help=OPTIONS["profile"].help)
    add_figure(parser, "--svg", "predicted throughput against measured")
    shared.add_trust_argument(parser)
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Predict every row, and report the errors."""
    common = {}
    for name, load in PRICED_BY.items():
        if path := getattr(options, name):
            load(path)  # here, so that its own option is blamed
            common[name] = path
    with blaming("TABLE.csv"):
        rows = read_rows(options.table, trust=options.trust, **common)
    note_doubts(options.command, doubts_of(row.experiment for row in rows))
    comparisons = [compare(row) for row in rows]
    if options.json:
        print_json(
            {
                "rows": [each.record for each in comparisons],
                "step_time_mape": mean_absolute_error(comparisons, "step_seconds"),
                "throughput_mape": mean_absolute_error(comparisons, "tflops_per_gpu"),
                "memory_mape": mean_absolute_error(comparisons, ANY_MEMORY),
                "coverage": coverage(comparisons),
            }
        )
    else:
        _print(comparisons)
    if options.svg:
        _draw(comparisons, options.svg)
    return 0


def _draw(comparisons: Sequence[Comparison], figure: Output) -> None:
    from bfpp.traces.figures.svg.scatter import Point, scatter

    name = "tflops_per_gpu" if all(each.physical for each in comparisons) else "step_seconds"
    points = [
        Point(each.measured.schedule, each.measured_value(name) or 0.0, each.predicted[name])
        for each in comparisons
    ]
    error = mean_absolute_error(comparisons, name)
    what = f"{COMPARED[name].title.capitalize()} of {len(points)} configurations"
    unit = "TFLOP/s per GPU" if name == "tflops_per_gpu" else "s"
    write_figure(figure, scatter(points, f"{what}: mean absolute error {error:.1f} %", unit))


def _print(comparisons: Sequence[Comparison]) -> None:
    compared = {name for each in comparisons for name in _compared_of(each)}
    names = [name for name in COMPARED if name in compared]
    rows = []
    for each in comparisons:
        row = each.measured.record
        cells = [
            f"{row['table']} {row['schedule']}".strip(),
            str(row["batch"]),
            f"{row['pp']} x {row['tp']} x {row['dp']}",
            f"{row['microbatches']} x {row['microbatch_size']}",
            str(row["loops"]),
            str(row["sharding"]),
        ]
        for name in names:
            cells += _cells(each, name)
        rows.append(cells)
    columns = [cell for name in names for cell in (COMPARED[name].column, "error")]
    print_table("Measured / predicted", [*COLUMNS, *columns], rows)
    software = Counter(each.physical.implementation.name for each in comparisons if each.physical)
    if software:
        named = ", ".join(f"{name} ({counted(count, 'row')})" for name, count in software.items())
        sys.stdout.write(f"implementation: {named}\n\n")
    errors = [
        (COMPARED[name].title, f"{error:.2f} %")
        for name in names
        if (error := mean_absolute_error(comparisons, name)) is not None
    ]
    if (inside := coverage(comparisons)) is not None:
        errors.append(("step times inside their 80 % intervals", f"{inside:.0%}"))
    print_table("Mean absolute error", ("", ""), errors)


def _compared_of(each: Comparison) -> tuple[str, ...]:
    """Values shown of a row: by a profile there is only the step time."""
    return ("tflops_per_gpu", ANY_MEMORY) if each.physical else ("step_seconds",)


def _cells(each: Comparison, name: str) -> list[str]:
    """The measured and predicted value, and the error; dashes for what is missing."""
    if name not in _compared_of(each):
        return ["-", "-"]
    shown, name = COMPARED[name].shown, each.name_of(name)
    predicted, measured = each.predicted[name], each.measured_value(name)
    if measured is None:
        return [f"- / {shown(predicted)}", "-"]
    return [f"{shown(measured)} / {shown(predicted)}", f"{each.error(name):+.1f} %"]

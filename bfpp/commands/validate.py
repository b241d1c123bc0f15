"""`bfpp validate`: predict measured configurations, and compare."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bfpp import options as shared
from bfpp.errors import blaming
from bfpp.figures import add_figure, write_figure
from bfpp.outputs import Output, add_force_argument
from bfpp.results import print_json, print_table
from bfpp.sim.constants import Constants, load_constants
from bfpp.sim.published import sources, table_path
from bfpp.sim.validation import (
    COLUMNS_IN_WORDS,
    Comparison,
    compare,
    coverage,
    mean_absolute_error,
    read_measurements,
)

SHOWN = ("batch", "pp", "tp", "dp", "microbatch_size", "microbatches", "loops", "sharding")
COLUMNS = (
    "configuration", "batch", "pp", "tp", "dp", "size", "micro-batches", "loops", "sharding",
    "Tflop/s", "predicted", "error", "memory", "predicted", "error",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp validate`."""
    parser.epilog = COLUMNS_IN_WORDS
    parser.add_argument(
        "table",
        type=table_path,
        metavar="TABLE.csv",
        help=f"measured configurations, one a row; or published ones: {', '.join(sources())}",
    )
    parser.add_argument(
        "--constants",
        "--profile",
        type=Path,
        metavar="FILE",
        help="constants from bfpp fit --out (default: those that are shipped)",
    )
    add_figure(parser, "--svg", "predicted throughput against measured")
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Predict every row, and report the errors."""
    constants = load_constants(options.constants) if options.constants else Constants()
    with blaming("TABLE.csv"):
        rows = read_measurements(options.table)
    comparisons = [compare(row, constants) for row in rows]
    if options.json:
        print_json(
            {
                "rows": [each.record for each in comparisons],
                "throughput_mape": mean_absolute_error(comparisons, "tflops_per_gpu"),
                "memory_mape": mean_absolute_error(comparisons, "memory_gb"),
                "coverage": coverage(comparisons),
            }
        )
    else:
        _print(comparisons)
    if options.svg:
        _draw(comparisons, options.svg)
    return 0


def _draw(comparisons: Sequence[Comparison], figure: Output) -> None:
    from bfpp.traces.scatter import Point, scatter

    points = [
        Point(
            each.measured.schedule, each.measured.tflops_per_gpu, each.predicted["tflops_per_gpu"]
        )
        for each in comparisons
    ]
    error = mean_absolute_error(comparisons, "tflops_per_gpu")
    title = f"Throughput of {len(points)} configurations: mean absolute error {error:.1f} %"
    write_figure(figure, scatter(points, title, "Tflop/s per GPU"))


def _print(comparisons: Sequence[Comparison]) -> None:
    rows = []
    for each in comparisons:
        row = each.measured.record
        cells = [f"{row['table']} {row['schedule']}".strip()]
        cells += [str(row[name]) for name in SHOWN]
        for name in ("tflops_per_gpu", "memory_gb"):
            cells += _compared(each, name)
        rows.append(cells)
    print_table("Measured and predicted", COLUMNS, rows)
    print_table(
        "Mean absolute error",
        ("", ""),
        [
            (title, f"{error:.2f} %")
            for title, name in (("throughput", "tflops_per_gpu"), ("memory", "memory_gb"))
            if (error := mean_absolute_error(comparisons, name)) is not None
        ]
        + [("step times inside their 80 % intervals", f"{coverage(comparisons):.0%}")],
    )


def _compared(each: Comparison, name: str) -> list[str]:
    """What was measured, the prediction and its error; dashes where nothing was measured."""
    measured = each.measured_value(name)
    if measured is None:
        return ["-", f"{each.predicted[name]:.1f}", "-"]
    return [f"{measured:.1f}", f"{each.predicted[name]:.1f}", f"{each.error(name):+.1f} %"]

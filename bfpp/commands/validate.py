"""`bfpp validate`: predict measured configurations, and compare."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bfpp import options as shared
from bfpp.errors import blaming
from bfpp.formats import SVG
from bfpp.outputs import Output, add_force_argument, add_output
from bfpp.results import print_json, print_table
from bfpp.sim.constants import load_constants
from bfpp.sim.validation import Comparison, Profile, compare, mean_absolute_error, read_measurements

COLUMNS = (
    "configuration", "batch", "pp", "tp", "dp", "size", "micro-batches", "loops", "sharding",
    "Tflop/s", "predicted", "error", "memory", "predicted", "error",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `bfpp validate`."""
    parser.add_argument(
        "table", type=Path, metavar="TABLE.csv", help="measured configurations, one a row"
    )
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="constants from bfpp fit --out (default: those that are shipped)",
    )
    add_output(parser, "--svg", [SVG], "figure: predicted throughput against measured")
    add_force_argument(parser)
    shared.add_json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Predict every row, and report the errors."""
    profile = load_constants(options.profile) if options.profile else Profile()
    with blaming("TABLE.csv"):
        rows = read_measurements(options.table)
    comparisons = [compare(row, profile) for row in rows]
    if options.json:
        print_json(
            {
                "rows": [each.record for each in comparisons],
                "throughput_mape": mean_absolute_error(comparisons, "tflops_per_gpu"),
                "memory_mape": mean_absolute_error(comparisons, "memory_gb"),
            }
        )
    else:
        _print(comparisons)
    if options.svg:
        _draw(comparisons, options.svg)
    return 0


def _draw(comparisons: Sequence[Comparison], figure: Output) -> None:
    from bfpp.traces.scatter import Point, write_scatter

    points = [
        Point(
            each.measured.schedule, each.measured.tflops_per_gpu, each.predicted["tflops_per_gpu"]
        )
        for each in comparisons
    ]
    error = mean_absolute_error(comparisons, "tflops_per_gpu")
    title = f"Throughput of {len(points)} configurations: mean absolute error {error:.1f} %"
    with figure.written() as path:
        write_scatter(points, path, title, "Tflop/s per GPU")


def _print(comparisons: Sequence[Comparison]) -> None:
    rows = []
    for each in comparisons:
        row = each.measured
        cells = [f"{row.table} {row.schedule}", row.batch, row.pp, row.tp, row.dp]
        cells += [row.microbatch_size, row.microbatches, row.loops, row.sharding]
        for name in ("tflops_per_gpu", "memory_gb"):
            cells += [
                f"{getattr(row, name):.1f}",
                f"{each.predicted[name]:.1f}",
                f"{each.error(name):+.1f} %",
            ]
        rows.append([str(cell) for cell in cells])
    throughput = mean_absolute_error(comparisons, "tflops_per_gpu")
    memory = mean_absolute_error(comparisons, "memory_gb")
    print_table("Measured and predicted", COLUMNS, rows)
    print_table(
        "Mean absolute error",
        ("", ""),
        [("throughput", f"{throughput:.2f} %"), ("memory", f"{memory:.2f} %")],
    )

"""`python -m benchmarks [NAME ...] [--against DIR] [--json FILE] [--out FILE.md]`: run some."""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.helpers.measure import FORMER, Results

SPEEDS = (
    "sim.scale",
    "sim.engines",
    "schedules.lowering",
    "traces.metrics",
    "schedules.checking",
    "sim.composite",
    "sim.small",
    "sim.search",
    "sim.synthesis",
    "commands.startup",
    "commands.commands",
    "sim.batch",
    "executor.prediction",
    "executor.uneven",
    "executor.dispatch",
    "executor.halves",
    "executor.zero_bubble",
    "executor.runtimes",
    "traces.redraw",
    "commands.explorer",
)
OTHERS = (
    "executor.gpu",
    "executor.gpu_prediction",
    "executor.faults",
    "executor.configurations",
    "house.fuzzing",
    "sim.accuracy",
    "sim.recipes",
    "sim.searched",
    "sim.fits",
    "executor.acceptance",
    "house.mutations",
    "launchers.launch_files",
)
NAMES = {module.rpartition(".")[2]: module for module in (*SPEEDS, *OTHERS)}
"""The module of each benchmark, by the name that it is run by."""


def show(console: Console, results: Results) -> None:
    table = Table(title=results.title, title_justify="left", caption_justify="left")
    table.caption = "\n".join([f"Target: {results.target}.", *results.remarks])
    for name, value in results.rows[0].items():
        is_number = str(value).replace(",", "").replace(".", "").isdigit()
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in results.rows:
        table.add_row(*map(str, row.values()))
    console.print(table)


def markdown(tables: list[Results], command: str) -> str:
    """A page: when, where and by which command it was measured, the tables, and their remarks."""
    measured = (
        f"Measured on {date.today()} with `{command}` on {os.cpu_count()} cores "
        f"({processor()}, Python {platform.python_version()})."
    )
    first, *others = tables
    sections = [f"# {first.title}\n\n{measured}\n\n{section(first)}"]
    sections += [f"## {results.title}\n\n{section(results)}" for results in others]
    return "\n".join(sections)


def section(results: Results) -> str:
    names = list(results.rows[0])
    rows = [names, ["---"] * len(names), *(map(str, row.values()) for row in results.rows)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    remarks = "".join(f"- {remark}\n" for remark in results.remarks)
    return "\n".join([f"Target: {results.target}.\n", *([remarks] if remarks else []), table, ""])


def processor() -> str:
    """The processor's name, if the system says it."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"{', '.join(NAMES)} (default: all that measure speed)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the tables to a page")
    parser.add_argument("--against", metavar="DIR", help="an older checkout to compare with")
    options = parser.parse_args()
    if unknown := set(options.names) - NAMES.keys():
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(NAMES)}")
    if options.against:
        os.environ[FORMER] = options.against
    console = Console()
    record: dict[str, Any] = {"processor": processor(), "python": platform.python_version()}
    pages = []
    for name in options.names or list(NAMES)[: len(SPEEDS)]:
        results = import_module(f"benchmarks.{NAMES[name]}").run()
        tables = results if isinstance(results, list) else [results]
        for table in tables:
            show(console, table)
        record[name] = [asdict(table) for table in tables]
        if options.json:
            options.json.write_text(json.dumps(record, indent=1) + "\n")
        pages.append(markdown(tables, f"python -m benchmarks {name}"))
        if options.out:
            options.out.write_text("\n".join(pages))


if __name__ == "__main__":
    main()

"""`python -m benchmarks [NAME ...] [--json FILE]`: run some benchmarks, or all."""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Results

NAMES = ("scale", "engines", "lowering", "small", "startup", "batch", "prediction")


def show(console: Console, results: Results) -> None:
    table = Table(title=results.title, title_justify="left", caption_justify="left")
    table.caption = "\n".join([f"Target: {results.target}.", *results.remarks])
    for name, value in results.rows[0].items():
        is_number = str(value).replace(",", "").replace(".", "").isdigit()
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in results.rows:
        table.add_row(*map(str, row.values()))
    console.print(table)


def processor() -> str:
    """The processor's name, where the system tells it."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(NAMES)}")
    console = Console()
    record: dict[str, Any] = {"processor": processor(), "python": platform.python_version()}
    for name in options.names or NAMES:
        results = import_module(f"benchmarks.{name}").run()
        show(console, results)
        record[name] = asdict(results)
        if options.json:
            options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

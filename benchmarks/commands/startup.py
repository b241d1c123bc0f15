"""Time of the command line for a small schedule, as a whole process."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial

from benchmarks.helpers.measure import ROOT, Results, medians

COMMAND = (
    "simulate",
    "breadth-first",
    "--pp",
    "4",
    "--loops",
    "4",
    "--microbatches",
    "8",
    "--json",
)
BFPP = ["-m", "bfpp", *COMMAND]
HEAVY = ("networkx", "plotly", "scipy", "simpy", "torch")
SHOWN = 12
RUNS = 11

LIST_MODULES = (
    "import sys; from bfpp.command_line import main; main(sys.argv[1:]); "
    "print(*sys.modules, file=sys.stderr)"
)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )


def run() -> Results:
    parts = {
        "python -c pass": ["-c", "pass"],
        "python -c 'import numpy'": ["-c", "import numpy"],
        "python -c 'import bfpp'": ["-c", "import bfpp"],
        f"bfpp {' '.join(COMMAND)}": BFPP,
    }
    times = medians(RUNS, *(partial(python, *words) for words in parts.values()))
    rows = [
        {"what": name, "seconds": f"{time:.3f}"} for name, time in zip(parts, times, strict=True)
    ]
    rows += [
        {"what": f"import {name}", "seconds": f"{microseconds / 1e6:.3f}"}
        for name, microseconds in _slowest_imports()
    ]
    loaded = {name.partition(".")[0] for name in _modules()}
    heavy = [name for name in HEAVY if name in loaded]
    return Results(
        "Startup: whole processes, and the slowest imports (with what they import)",
        "plotly and networkx not loaded",
        rows,
        [f"Medians of {RUNS}, in turn. Heavy packages loaded: {', '.join(heavy) or 'none'}."],
    )


def _modules() -> list[str]:
    return python("-c", LIST_MODULES, *COMMAND).stderr.split()


def _slowest_imports() -> list[tuple[str, int]]:
    profile = python("-X", "importtime", *BFPP).stderr
    found = re.findall(r"import time: +\d+ \| +(\d+) \| +([\w.]+)", profile)
    slowest = sorted(((name, int(time)) for time, name in found), key=lambda each: -each[1])
    return [each for each in slowest if each[0] != "site"][:SHOWN]

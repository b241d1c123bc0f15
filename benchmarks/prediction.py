"""Predicted and measured step times of the four schedules, on this machine.

Two ranks that compute, then eight that sleep as long as they would compute. All
take turns, calibration included, so that all see the same noise of the machine;
what is compared are medians over the turns' steps.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import ROOT, Results

TURNS, STEPS, WARM_UP = 2, 12, 2
TIE = 0.03
"""Predictions nearer to each other than this share are no ranking."""

MODEL = ("--layers", "16", "--hidden", "128")
"""Stages of four to eight layers take milliseconds."""


@dataclass(frozen=True)
class Case:
    """A schedule, and how it is run."""

    schedule: str
    ranks: int
    sleeps: bool

    def words(self) -> list[str]:
        """The layout: 16 layers in stages of 4 (2 ranks) or 1 (8 ranks), or twice that."""
        looped = self.schedule in ("breadth-first", "depth-first")
        loops = ["--loops", "2"] if looped else []
        return [self.schedule, "--pp", str(self.ranks), "--microbatches", "8", *loops]


SCHEDULES = ("breadth-first", "depth-first", "1f1b", "gpipe")
GROUPS = {
    "2 ranks, computing": [Case(name, 2, sleeps=False) for name in SCHEDULES],
    "8 ranks, sleeping": [Case(name, 8, sleeps=True) for name in SCHEDULES],
}


def bfpp(*words: str) -> Any:
    """What a command answers a program."""
    command = [sys.executable, "-m", "bfpp.command_line", *words, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"bfpp {' '.join(words)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def turn(folder: str) -> dict[Case, tuple[float, list[float]]]:
    """Calibrate once, and run everything once: predicted seconds and measured ones."""
    profile = str(Path(folder) / "profile.toml")
    bfpp("calibrate", "--out", profile, *MODEL)
    found = {}
    for case in (case for cases in GROUPS.values() for case in cases):
        sleep = ["--sleep", profile] if case.sleeps else []
        predicted = bfpp("simulate", *case.words(), "--profile", profile)["step_time"]
        run = bfpp("run", *case.words(), *MODEL, "--steps", str(STEPS), *sleep)
        found[case] = predicted, run["step_times"][WARM_UP:]
    return found


def reversed_pairs(predicted: dict[str, float], measured: dict[str, float]) -> list[str]:
    """Pairs of which the one that was predicted to be faster, by more than a tie, was not."""
    return [
        f"{one} and {other}"
        for one, other in combinations(predicted, 2)
        if abs(predicted[one] / predicted[other] - 1) > TIE
        and (predicted[one] < predicted[other]) != (measured[one] < measured[other])
    ]


def run() -> Results:
    with tempfile.TemporaryDirectory() as folder:
        turns = [turn(folder) for _ in range(TURNS)]
    rows, remarks = [], []
    for title, cases in GROUPS.items():
        predicted = {case.schedule: median(each[case][0] for each in turns) for case in cases}
        measured = {
            case.schedule: median(step for each in turns for step in each[case][1])
            for case in cases
        }
        rows += [
            {
                "how": title,
                "schedule": name,
                "predicted (ms)": f"{1e3 * predicted[name]:.1f}",
                "measured (ms)": f"{1e3 * measured[name]:.1f}",
                "error (%)": f"{100 * (predicted[name] / measured[name] - 1):+.1f}",
            }
            for name in SCHEDULES
        ]
        for what, seconds in (("predicted", predicted), ("measured", measured)):
            remarks.append(
                f"{title}, {what}: {' < '.join(sorted(seconds, key=seconds.__getitem__))}."
            )
        wrong = reversed_pairs(predicted, measured)
        remarks.append(f"{title}, pairs the wrong way round: {', '.join(wrong) or 'none'}.")
    return Results(
        f"Predicted and measured: {TURNS} turns of {STEPS - WARM_UP} steps, in milliseconds",
        f"errors below 10 %, and the ranking of all that differ by more than {TIE:.0%}",
        rows,
        remarks,
    )

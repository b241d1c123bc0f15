"""Whole commands as a new user waits for them: the first run of each, and the second.

The first is in a fresh virtual environment with an empty home, and can write to no folder but the
temporary one. The second has all that runs before it left behind (Linux). `--against DIR` names the
root of an older checkout to compare with, in turn.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.helpers.installations import copy_of, installed
from benchmarks.helpers.measure import Results, checkouts, process_seconds

MODEL = "--model bert-52b --cluster dgx1-v100 --pp 8 --tp 8 --loops 4 --microbatches 16"
COMMANDS = {
    "help": "--help",
    "small step": "simulate breadth-first --pp 4 --loops 4 --microbatches 8",
    "step of a model": f"simulate breadth-first {MODEL}",
    "130,000 tasks": "simulate 1f1b --pp 64 --microbatches 512 --transfer 0.1",
    "a million tasks": "simulate breadth-first --pp 32 --loops 8 --microbatches 1024 --transfer 1",
    "explain": f"explain breadth-first {MODEL} --set inter_node.bandwidth=x2",
    "schedule, 1 s": "schedule --pp 4 --microbatches 8 --memory-limit 3 --seconds 1",
    "search": "search --model bert-6.6b --cluster dgx1-v100 --gpus 16 --batch 32 --workers 2",
}
RUNS = 5


@dataclass(frozen=True)
class Place:
    """A Python that bfpp is installed in, and a home."""

    environment: Path
    home: Path

    def seconds(self, words: str, bound: bool) -> tuple[float, float]:
        """Seconds that a command takes, and those of CPU."""
        command = [str(self.environment / "bin" / "python"), "-m", "bfpp", *words.split()]
        return process_seconds(
            command, self.home, {"HOME": str(self.home), "PATH": os.defpath}, bound
        )


@dataclass(frozen=True)
class Installation:
    """A checkout, installed twice: as new, where nothing may be written, and in use."""

    new: Place
    used: Place

    @classmethod
    def of(cls, checkout: Path, folder: Path) -> Installation:
        """Install it, and run each command once where it will be in use."""
        new, used = (Place(folder / name, folder / f"{name}-home") for name in ("new", "used"))
        installed(copy_of(checkout, folder / "source"), new.environment)
        shutil.copytree(new.environment, used.environment, symlinks=True)
        for place in (new, used):
            place.home.mkdir()
        for words in COMMANDS.values():
            used.seconds(words, bound=False)
        return cls(new, used)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nothing new can be written beside what is installed, or in the home of a first run."""
        folders = [self.new.home, *(Path(each[0]) for each in os.walk(self.new.environment))]
        for folder in folders:
            folder.chmod(0o555)
        try:
            yield
        finally:
            for folder in folders:
                folder.chmod(0o755)

    @property
    def size(self) -> float:
        """Megabytes that it takes on the disk, with all that it needs, as new."""
        files = (path for path in self.new.environment.rglob("*") if not path.is_symlink())
        return sum(path.stat().st_size for path in files if path.is_file()) / 1e6


def run() -> Results:
    taken: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    with TemporaryDirectory() as folder, ExitStack() as stack:
        installations = {
            name: Installation.of(checkout, Path(folder, name))
            for name, checkout in checkouts().items()
        }
        sizes = {name: installation.size for name, installation in installations.items()}
        for installation in installations.values():
            stack.enter_context(installation.locked())
        for _ in range(RUNS):
            for what, words in COMMANDS.items():
                for name, each in installations.items():
                    first, second = each.new.seconds(words, True), each.used.seconds(words, False)
                    taken.setdefault((name, what, "first"), []).append(first)
                    taken.setdefault((name, what, "second"), []).append(second)
    return Results(
        "Commands in a fresh environment, with an empty home, and the second time",
        "the first run takes at most 1.3 times the second",
        [_row(what, taken) for what in COMMANDS],
        [
            f"Medians of {RUNS}, in turn; seconds of wall time, and of CPU of all processes.",
            "Installed, without torch: "
            + ", ".join(f"{size:.0f} MB ({name})" for name, size in sizes.items())
            + ".",
        ],
    )


def _row(what: str, taken: dict[tuple[str, str, str], list[tuple[float, float]]]) -> dict[str, str]:
    """Medians of a command, those of the former checkout, and what came of it."""
    medians = {
        (name, turn): [median(column) for column in zip(*seconds, strict=True)]
        for (name, command, turn), seconds in taken.items()
        if command == what
    }
    row = {"command": what}
    for (name, turn), (wall, cpu) in medians.items():
        of = "" if name == "this" else f"{name}, "
        row |= {f"{of}{turn} (s)": f"{wall:.2f}", f"{of}{turn}, CPU (s)": f"{cpu:.2f}"}
    first, second = medians["this", "first"], medians["this", "second"]
    row["first / second"] = f"{first[0] / second[0]:.2f}"
    if before := medians.get(("former", "second")):
        row["CPU, second / former"] = f"{second[1] / before[1]:.2f}"
    return row

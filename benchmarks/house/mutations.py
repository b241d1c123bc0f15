"""Mutation testing: faults drawn at random, put into the product one at a time.

First the tests run once, to see which of them execute which line (`executed.py`), and how long
each takes. A fault is then tried on those that execute the lines that it is in: the most specific
first, then more of them and of the module's, shortest first, as far as a budget goes. It is killed
when a test fails or does not end. What no test could decide (the result is the same, or a wait is a
second longer) is listed with its reason in `undecidable.toml`, and left out of the share.

`python -m benchmarks.house.mutations PACKAGE ... [--count N] [--seed N]` tries some packages.
What was killed once is not tried again, what survived is (`draws.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue

from benchmarks.helpers.measure import ROOT, Results
from benchmarks.house.draws import BUILD, PACKAGES, Draw, mutants_in
from benchmarks.house.mutants import Mutant, imported_by
from bfpp.core.sources import LIBRARY

DRAWS = ((42, 1), (10, 2))
"""Faults of each package, and the seed that they are drawn with.

Tests were written for what survived of the first; the second tells whether they notice others, too.
"""

WORKERS = os.cpu_count() or 1

SPECIFIC = 25
"""Tests that are tried first: those that execute the fewest lines."""

BUDGET = 45.0
"""Seconds that the tests of a fault take where nothing is wrong."""

START, PATIENCE = 60.0, 4
"""Tests hang if they take longer than a start and this many times their seconds."""


@dataclass(frozen=True)
class Executed:
    """Seconds that each test takes, and which tests execute a line of a file."""

    seconds: Mapping[str, float]
    lines: Mapping[str, Mapping[int, Sequence[str]]]

    @cached_property
    def breadth(self) -> Counter[str]:
        """Number of lines that each test executes."""
        every = (tests for lines in self.lines.values() for tests in lines.values())
        return Counter(test for tests in every for test in tests)

    def attempts(self, mutant: Mutant) -> list[list[str]]:
        """Two lists of tests: the specific ones, and as many more as the budget allows.

        What is outside of functions is executed once, when it is imported, what is remembered in
        the first test that asks for it, and what other processes or compiled loops execute is not
        known: all tests of the module may see these, or of the modules that import it.
        """
        lines = self.lines.get(mutant.path, {}) if mutant.function else {}
        near = {test for line in mutant.lines for test in lines.get(line, ())}
        around = self._of_files([mutant.path]) or self._of_files(
            imported_by(ROOT, mutant.path, self.lines)
        )
        first = sorted(near or around, key=lambda test: (self.breadth[test], test))[:SPECIFIC]
        more = sorted(
            (near | around) - set(first), key=lambda test: (test not in near, self.seconds[test])
        )
        left = BUDGET
        chosen = []
        for test in first + more:
            if self.seconds[test] <= left:
                left -= self.seconds[test]
                chosen.append(test)
        return [each for each in (chosen[:SPECIFIC], chosen[SPECIFIC:]) if each]

    def _of_files(self, paths: Sequence[str]) -> set[str]:
        return {
            test for path in paths for tests in self.lines.get(path, {}).values() for test in tests
        }


def copied(folder: Path) -> Path:
    """A copy of the working tree, in which faults may be made."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        target = folder / name
        if (ROOT / name).exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
    shutil.copy2(LIBRARY, folder / LIBRARY.relative_to(ROOT))
    return folder


def pytest_in(folder: Path, *arguments: str, limit: float | None = None) -> int | None:
    """Run tests of a copy: the exit code, or nothing if they did not end in time."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "BFPP_SLOW": "0"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir=.", *arguments]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def executed() -> Executed:
    """Run all tests and see what each executes, unless that is known from last time."""
    from coverage import CoverageData  # nothing else needs it

    found = BUILD / "executed"
    if not found.exists():
        with tempfile.TemporaryDirectory(prefix="bfpp-mutations-") as folder:
            records = Path(folder) / "executed"
            records.mkdir()
            plugin = ("-p", "benchmarks.house.executed", f"--executed={records}")
            parallel = ("--numprocesses", str(WORKERS), "--dist", "loadfile")
            pytest_in(copied(Path(folder) / "tree"), *plugin, *parallel)
            shutil.copytree(records, found)
    seconds: defaultdict[str, float] = defaultdict(float)
    for file in found.glob("*.seconds"):
        for test, taken in map(json.loads, file.read_text().splitlines()):
            seconds[test] += taken
    lines: defaultdict[str, defaultdict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in found.glob("*.lines"):
        data = CoverageData(str(file))
        data.read()
        for path in data.measured_files():
            of_file = lines[path.partition("/tree/")[2]]
            for line, tests in data.contexts_by_lineno(path).items():
                of_file[line] += [test for test in tests if test in seconds]
    return Executed(seconds, lines)


def verdict(folder: Path, mutant: Mutant, known: Executed) -> str:
    """`killed`, `survived`, or `unseen` by any test that is known."""
    attempts = known.attempts(mutant)
    if not attempts:
        return "unseen"
    path = folder / mutant.path
    source, times = path.read_bytes(), path.stat()
    try:
        path.write_bytes(mutant.applied(source))
        passed = all(passing(folder, tests, known) for tests in attempts)
        return "survived" if passed else "killed"
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()


def passing(folder: Path, tests: Sequence[str], known: Executed) -> bool:
    """Whether tests of a copy pass, and end."""
    chosen = folder / "chosen.txt"
    chosen.write_text("\n".join(tests))
    limit = START + PATIENCE * sum(map(known.seconds.__getitem__, tests))
    return pytest_in(folder, "-x", f"@{chosen}", limit=limit) == 0


def try_again(draw: Draw) -> None:
    """Try the faults of a draw that are not known as killed."""
    if not (mutants := draw.untried):
        return
    known = executed()
    folders: SimpleQueue[Path] = SimpleQueue()

    def try_one(mutant: Mutant) -> None:
        folder = folders.get()
        found = verdict(folder, mutant, known)
        draw.add(mutant.name, found)
        print(f"{found:9}{mutant.name} (line {mutant.lines[0]})", flush=True)
        folders.put(folder)

    with tempfile.TemporaryDirectory(prefix="bfpp-mutations-") as parent:
        for number in range(WORKERS):
            folders.put(copied(Path(parent) / str(number)))
        tests = next((some[0] for some in map(known.attempts, mutants) if some), None)
        if tests and not passing(Path(parent) / "0", tests, known):
            sys.exit("benchmarks.house.mutations: tests fail without any fault")
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(try_one, mutants))


def run() -> list[Results]:
    """Try both draws in all five packages: some hours."""
    titles = "Mutations: which small faults the tests notice", "Others, drawn afterwards"
    return [results(title, *draw) for title, draw in zip(titles, DRAWS, strict=True)]


def results(title: str, count: int, seed: int) -> Results:
    """A table of the packages, and what survived in each."""
    draws = [Draw(package, count, seed) for package in PACKAGES]
    for each in draws:
        try_again(each)
    possible = sum(len(mutants_in(each.package)) for each in draws)
    first = sum(each.killed_at_first for each in draws)
    decidable = sum(len(each.decidable) for each in draws)
    share = first / max(decidable, 1)
    return Results(
        title,
        "85 % of the decidable faults of each package",
        [each.row for each in draws],
        [
            f"{count} of each package's faults, {possible:,} in all, drawn with the seed {seed}.",
            "Each is tried on tests that execute what it is in, until one fails.",
            "`benchmarks/house/undecidable.toml` says of some why no test could decide them.",
            f"{first} of {decidable} were killed when tried first, as others may be: {share:.0%}.",
            "What survived then has tests since.",
            *(f"Survived: `{name}`" for each in draws for name in each.survivors),
        ],
    )


def main() -> None:
    """Try faults of some packages, and print what survived."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.house.mutations", description=__doc__
    )
    count, seed = DRAWS[0]
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", default=PACKAGES)
    parser.add_argument("--count", type=int, default=count, metavar="N", help="faults a package")
    parser.add_argument("--seed", type=int, default=seed, metavar="N", help="which are drawn")
    options = parser.parse_args()
    for package in options.packages:
        draw = Draw(package, options.count, options.seed)
        try_again(draw)
        print(draw.row)


if __name__ == "__main__":
    main()

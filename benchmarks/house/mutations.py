"""Mutation testing: faults drawn at random, put into the product one at a time.

First the tests run once, to see which of them execute which function (`executed.py`), and
how long each takes. A fault is then tried on those that execute the function that it is in: the
most specific first, then more of them, shortest first, as far as a budget goes. It is killed when
a test fails or does not end. What no test could decide (the result is the same, or a wait is a
second longer) is listed with its reason in `undecidable.toml`, and left out of the share.

`python -m benchmarks.house.mutations PACKAGE ... [--count N] [--seed N]` tries some packages.
Verdicts are kept in build/mutations: what was killed once is not tried again, what survived is.
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
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue

from benchmarks.helpers.measure import ROOT, Results
from benchmarks.house.executed import PACKAGES
from benchmarks.house.mutants import Mutant, drawn, imported_by

COUNT, SEED = 200, 1
WORKERS = os.cpu_count() or 1
BUILD = ROOT / "build" / "mutations"
UNDECIDABLE = Path(__file__).parent / "undecidable.toml"

SPECIFIC = 25
"""Tests that are tried first: those that execute the fewest functions."""

BUDGET = 45.0
"""Seconds that the tests of a fault take where nothing is wrong."""

START, PATIENCE = 60.0, 4
"""Tests hang if they take longer than a start and this many times their seconds."""


@dataclass(frozen=True)
class Coverage:
    """Seconds that each test takes, and which tests execute a function of a file."""

    seconds: Mapping[str, float]
    functions: Mapping[str, Mapping[str, Sequence[str]]]

    @cached_property
    def breadth(self) -> Counter[str]:
        """Number of functions that each test executes."""
        every = (tests for functions in self.functions.values() for tests in functions.values())
        return Counter(test for tests in every for test in tests)

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that can see a fault, the most specific first.

        What is outside of functions is executed once, when it is imported, and what other processes
        or compiled loops execute is not known: all tests of the module's functions may see these,
        or of the modules that import it, if it has none.
        """
        functions = self.functions.get(mutant.path, {})
        tests = set(functions.get(mutant.function, ())) or self._of_files([mutant.path])
        tests = tests or self._of_files(imported_by(ROOT, mutant.path, self.functions))
        return sorted(tests, key=lambda test: (self.breadth[test], test))

    def _of_files(self, paths: Sequence[str]) -> set[str]:
        return {
            test
            for path in paths
            for tests in self.functions.get(path, {}).values()
            for test in tests
        }

    def attempts(self, mutant: Mutant) -> list[list[str]]:
        """Two lists of tests: the specific ones, and as many more as the budget allows."""
        tests = self.tests_of(mutant)
        first, rest = [], []
        left = BUDGET
        for test in tests[:SPECIFIC] + sorted(tests[SPECIFIC:], key=self.seconds.__getitem__):
            if self.seconds[test] <= left:
                left -= self.seconds[test]
                (first if len(first) < SPECIFIC else rest).append(test)
        return [each for each in (first, rest) if each]


def product_files(package: str) -> list[str]:
    """The modules of one of the five packages: of the front door, those that no other one has."""
    apart = [f":!{each}/*" for each in PACKAGES if each.startswith(f"{package}/")]
    command = ["git", "ls-files", f"{package}/*.py", *apart]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.split()


def copied(folder: Path) -> Path:
    """A copy of the working tree, in which faults may be made."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        target = folder / name
        if (ROOT / name).exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
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


def covered() -> Coverage:
    """Run all tests and see what each executes, unless that is known from last time."""
    if sys.version_info < (3, 12):
        sys.exit(
            "benchmarks.house.mutations: needs Python 3.12 or later, which sees what is executed"
        )
    found = BUILD / "executed"
    if not found.exists():
        with tempfile.TemporaryDirectory(prefix="bfpp-mutations-") as folder:
            records = Path(folder) / "executed"
            records.mkdir()
            plugin = ("-p", "benchmarks.house.executed", f"--executed={records}")
            parallel = ("--numprocesses", str(WORKERS), "--dist", "loadfile")
            pytest_in(copied(Path(folder) / "tree"), *plugin, *parallel)
            shutil.copytree(records, found)
    seconds: dict[str, float] = {}
    functions: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for file in found.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            test, seconds[test], names = json.loads(line)
            for name in names:
                path, _, function = name.partition(": ")
                functions[path][function].append(test)
    return Coverage(seconds, functions)


def verdict(folder: Path, mutant: Mutant, coverage: Coverage) -> str:
    """`killed`, `survived`, or `unseen` by any test that the coverage knows."""
    attempts = coverage.attempts(mutant)
    if not attempts:
        return "unseen"
    path = folder / mutant.path
    source, times = path.read_bytes(), path.stat()
    chosen = folder / "chosen.txt"
    try:
        path.write_bytes(mutant.applied(source))
        for tests in attempts:
            chosen.write_text("\n".join(tests))
            limit = START + PATIENCE * sum(map(coverage.seconds.__getitem__, tests))
            if pytest_in(folder, "-x", f"@{chosen}", limit=limit) != 0:
                return "killed"
        return "survived"
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()


def require_passing(folders: SimpleQueue[Path], tests: Sequence[str]) -> None:
    """Stop unless tests pass where no fault is: else each fault would count as killed."""
    folder = folders.get()
    (folder / "chosen.txt").write_text("\n".join(tests))
    if pytest_in(folder, "-x", f"@{folder / 'chosen.txt'}") != 0:
        sys.exit("benchmarks.house.mutations: tests fail without any fault")
    folders.put(folder)


def verdicts(package: str, count: int = COUNT, seed: int = SEED) -> dict[str, str]:
    """The verdict on each fault that is drawn of a package."""
    coverage = covered()
    mutants = drawn(ROOT, product_files(package), count, seed)
    saved = BUILD / f"{package.replace('/', '.')}-{seed}.json"
    known: dict[str, str] = json.loads(saved.read_text()) if saved.exists() else {}
    folders: SimpleQueue[Path] = SimpleQueue()

    def tried(mutant: Mutant) -> None:
        folder = folders.get()
        known[mutant.name] = verdict(folder, mutant, coverage)
        print(f"{known[mutant.name]:9}{mutant.name} (line {mutant.line})", flush=True)
        saved.write_text(json.dumps(known, indent=1) + "\n")
        folders.put(folder)

    todo = [
        each for each in mutants if known.get(each.name) != "killed" and each.name not in excused()
    ]
    with tempfile.TemporaryDirectory(prefix="bfpp-mutations-") as parent:
        for number in range(WORKERS):
            folders.put(copied(Path(parent) / str(number)))
        if todo:
            require_passing(folders, coverage.attempts(todo[0])[0])
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(tried, todo))
    return {each.name: known.get(each.name, "undecidable") for each in mutants}


def excused() -> dict[str, str]:
    """Faults that no test could decide, each with the reason."""
    return tomllib.loads(UNDECIDABLE.read_text()) if UNDECIDABLE.exists() else {}


def share(found: Mapping[str, str]) -> dict[str, object]:
    """A row of the table: faults by verdict, and the share of decidable ones that were killed."""
    counts = Counter("undecidable" if name in excused() else each for name, each in found.items())
    decidable = len(found) - counts["undecidable"]
    return {
        "faults": len(found),
        "undecidable": counts["undecidable"],
        "killed": counts["killed"],
        "survived": decidable - counts["killed"],
        "killed of decidable": f"{counts['killed'] / max(decidable, 1):.0%}",
    }


def run() -> Results:
    """Try faults in all five packages: some hours."""
    found = {package: verdicts(package) for package in PACKAGES}
    return Results(
        "Faults that the tests notice",
        "85 % of the decidable faults of each package",
        [{"package": package, **share(each)} for package, each in found.items()],
        [
            f"{COUNT} faults of each package (seed {SEED}), each tried on tests that execute it.",
            *(
                f"Survived: `{name}`"
                for each in found.values()
                for name, end in each.items()
                if end != "killed" and name not in excused()
            ),
        ],
    )


def main() -> None:
    """Try faults of some packages, and print what survived."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.house.mutations", description=__doc__
    )
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", default=PACKAGES)
    parser.add_argument("--count", type=int, default=COUNT, metavar="N", help="faults a package")
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help="which are drawn")
    options = parser.parse_args()
    for package in options.packages:
        print(package, share(verdicts(package, options.count, options.seed)))


if __name__ == "__main__":
    main()

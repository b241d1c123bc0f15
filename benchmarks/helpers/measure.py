"""Medians, fresh processes and tables of results, for all benchmarks."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import perf_counter
from typing import Any

ROOT = Path(__file__).parents[2]
FORMER = "BFPP_FORMER"
"""The environment variable that holds the checkout of `--against`."""


@dataclass(frozen=True)
class Results:
    """One benchmark: rows of columns (the first row's keys), its target, remarks."""

    title: str
    target: str
    rows: list[dict[str, Any]]
    remarks: list[str] = field(default_factory=list)


def seconds(action: Callable[[], object], clock: Callable[[], float] = perf_counter) -> float:
    """Time of one call, on a clean heap."""
    gc.collect()
    begin = clock()
    action()
    return clock() - begin


def medians(
    runs: int, *actions: Callable[[], object], clock: Callable[[], float] = perf_counter
) -> list[float]:
    """The median seconds of each action; they take turns, so that all see the same noise."""
    taken = [[seconds(action, clock) for action in actions] for _ in range(runs)]
    return [median(column) for column in zip(*taken, strict=True)]


def in_fresh_process(module: str, *arguments: object) -> Any:
    """Run `python -m MODULE ARGUMENTS`, and parse the JSON that it prints."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def checkouts() -> dict[str, Path]:
    """This checkout and, with `--against`, the one to compare it with: by their names in tables."""
    former = os.environ.get(FORMER)
    return {"this": ROOT} | ({"former": Path(former).resolve()} if former else {})


def command_seconds(root: Path, *words: str) -> tuple[float, float]:
    """Seconds that `bfpp WORDS` of a checkout takes, and those of CPU of all its processes (Linux).

    Modules are compiled to bytecode once, as if installed, whatever the environment says: in the
    first run.
    """
    former = not (root / "bfpp" / "__main__.py").exists()
    module = "bfpp.command_line" if former else "bfpp"
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": _bytecode().name}
    return process_seconds([sys.executable, "-m", module, *words], root, os.environ | kept)


def process_seconds(
    command: list[str], folder: Path, environment: Mapping[str, str], bound: bool = False
) -> tuple[float, float]:
    """Seconds that a command takes, and those of CPU of all its processes (Linux).

    A process in between adopts those that outlive the command, so that they count too. If `bound`,
    folders that may not be written to are closed to root as well.
    """
    adopting = [sys.executable, "-c", _ADOPT, str(int(bound)), *command]
    done = subprocess.run(
        adopting, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    wall, cpu = json.loads(done.stdout)
    return wall, cpu


@cache
def _bytecode() -> TemporaryDirectory[str]:
    """Folder of the bytecode, kept for as long as this process runs."""
    return TemporaryDirectory()


_ADOPT = """
import ctypes, json, os, resource, subprocess, sys, time
prctl = ctypes.CDLL(None).prctl
prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
if sys.argv[1] == "1" and os.geteuid() == 0:
    assert prctl(24, 1, 0, 0, 0) == 0  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
begun = time.perf_counter()
subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL, check=True)
wall = time.perf_counter() - begun
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([wall, used.ru_utime + used.ru_stime]))
"""


def forget_peak_memory() -> None:
    """Let the peak of this process's memory begin anew at what it has now (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def memory(line: str) -> int:
    """Bytes of this process now (`VmRSS`) or at its peak (`VmHWM`) (Linux)."""
    status = Path("/proc/self/status").read_text()
    found = next(words for words in status.splitlines() if words.startswith(line))
    return int(found.split()[1]) * 1024


HEAP = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
    "keepcost",
)  # fmt: skip
"""Counts of glibc's `mallinfo2`: `uordblks` are bytes in use on heaps, `hblkhd` in other maps."""

OFTEN = 0.0005
"""Seconds between two looks at what is allocated."""


class Heap(ctypes.Structure):
    """The counts of `mallinfo2`."""

    _fields_ = [(name, ctypes.c_size_t) for name in HEAP]

    @classmethod
    def allocated(cls) -> int:
        """Bytes that are allocated in this process (glibc)."""
        ask = ctypes.CDLL(None).mallinfo2
        ask.restype = cls
        found = ask()
        return int(found.uordblks + found.hblkhd)


@dataclass
class Peak:
    """The most bytes that were allocated at a time, beyond those at the start."""

    bytes: int = 0


@contextmanager
def allocated_at_most() -> Iterator[Peak]:
    """Look often at what is allocated, and keep the most (glibc).

    Unlike resident memory, it does not depend on what the allocator keeps of what was freed.
    """
    before, peak, ends = Heap.allocated(), Peak(), Event()

    def look() -> None:
        while not ends.wait(OFTEN):
            peak.bytes = max(peak.bytes, Heap.allocated() - before)

    looking = Thread(target=look)
    looking.start()
    try:
        yield peak
    finally:
        ends.set()
        looking.join()

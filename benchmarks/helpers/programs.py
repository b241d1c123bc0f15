"""`bfpp run` with a small model as a program, and the processes that it has started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.helpers import faulty_models
from benchmarks.helpers.measure import ROOT

MODELS = Path(faulty_models.__file__)
MODEL = f"{MODELS}:regression"


def command(*options: object) -> list[str]:
    """`run SCHEDULE ...` with the small model, unless another is among the options."""
    words = [str(option) for option in options]
    return ["run", *words, *([] if {"--model", "--layers"} & {*words} else ["--model", MODEL])]


@dataclass(frozen=True)
class Ended:
    """A command's exit code, standard output and standard error."""

    code: int
    output: str
    errors: str

    @property
    def record(self) -> dict[str, Any]:
        """Its output as JSON, if it ended well."""
        assert (self.code, self.errors) == (0, ""), self.errors
        return dict(json.loads(self.output))

    @property
    def said(self) -> list[str]:
        """Its lines of error, but for what it logs of steps."""
        return unlogged(self.errors)

    @property
    def line(self) -> str:
        """Its one line of error."""
        (line,) = self.said
        assert self.output == ""
        return line


LOGGED = ("step ", "resuming from ", "no checkpoint in ", "bfpp run: done before: ")


def unlogged(errors: str) -> list[str]:
    """The lines of standard error, but for what is logged of steps that were done."""
    return [line for line in errors.splitlines() if not line.startswith(LOGGED)]


def program(
    *options: object,
    before: Sequence[str] = ("-m", "bfpp"),
    variables: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """`bfpp run` as a program, on its way."""
    return subprocess.Popen(
        [*prefix, sys.executable, *before, *command(*options)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_of(process: subprocess.Popen[str], seconds: float = 120.0) -> Ended:
    """Wait for a program to end, and describe its end."""
    output, errors = process.communicate(timeout=seconds)
    return Ended(process.returncode, output, errors)


def run(*options: object, variables: Mapping[str, str] | None = None) -> Ended:
    """`bfpp run` as a program, once it has ended."""
    with program(*options, variables=variables) as process:
        return end_of(process)


# What it writes


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The events in a file of metrics."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def steps_of(path: Path) -> list[dict[str, Any]]:
    """The steps in a file of metrics."""
    return [line for line in lines_of(path) if line["event"] == "step"]


def step_of(checkpoint: Path) -> int:
    """The steps that were done when it was saved."""
    return int(checkpoint.name.rpartition("-")[2])


# Its processes


def variables_of(pid: int) -> dict[str, str]:
    """The environment that a process began with; nothing of one that is gone."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(word).partition("=") for word in words)
    return {name: value for name, _, value in pairs}


def ranks_of(process: subprocess.Popen[str]) -> dict[int, int]:
    """The process ids of a program's ranks that have begun, by their number."""
    found = {pid: variables_of(pid).get("RANK") for pid in children(process.pid)}
    return {int(rank): pid for pid, rank in found.items() if rank is not None}


def having(name: str, value: str) -> list[int]:
    """The processes that run with such a variable, which children inherit."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return alive([pid for pid in pids if variables_of(pid).get(name) == value])


def children(pid: int) -> list[int]:
    """The child processes of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            continue
    return found


def alive(pids: Sequence[int]) -> list[int]:
    """Those of the processes that run; a zombie does not, and is its reaper's matter."""
    return [pid for pid in pids if _state(pid) not in ("", "Z")]


def _state(pid: int) -> str:
    """One letter; nothing of a process that is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

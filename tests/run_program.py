"""`bfpp run` with a small model: in this process, or as a program with children."""

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

import pytest

from bfpp.command_line import main
from tests import small_models

ROOT = Path(__file__).parent.parent
MODEL = f"{small_models.__file__}:regression"


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
        """What it tells as JSON, if it ended well."""
        assert (self.code, self.errors) == (0, "")
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


LOGGED = ("step ", "going on from ", "no checkpoint in ", "bfpp run: done before: ")


def unlogged(errors: str) -> list[str]:
    """The lines of standard error, but for what is logged of steps that were done."""
    return [line for line in errors.splitlines() if not line.startswith(LOGGED)]


def run_here(capsys: pytest.CaptureFixture[str], *options: object) -> Ended:
    """`bfpp run` in this process, with a child for each rank; or one, if it is local."""
    try:
        code = main(command(*options))
    except SystemExit as left:
        code = int(str(left.code))
    return Ended(code, *capsys.readouterr())


def program(
    *options: object,
    before: Sequence[str] = ("-m", "bfpp.command_line"),
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


def run(*options: object, variables: Mapping[str, str] | None = None) -> Ended:
    """`bfpp run` as a program, once it has ended."""
    with program(*options, variables=variables) as process:
        output, errors = process.communicate(timeout=120)
    return Ended(process.returncode, output, errors)


# Its processes


def ranks_of(process: subprocess.Popen[str]) -> dict[int, int]:
    """The process ids of a program's ranks that have begun, by their number."""
    found = {}
    for pid in children(process.pid):
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for word in words:
            if word.startswith(b"RANK="):
                found[int(word[5:])] = pid
    return found


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
    """Those of the processes that run; a zombie does not."""
    stat = [(pid, Path(f"/proc/{pid}/stat")) for pid in pids]
    return [pid for pid, file in stat if file.exists() and " Z " not in file.read_text()]


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

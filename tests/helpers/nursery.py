"""Processes of runs that are forked off one that has imported torch: each begins in a moment.

A Python of its own imports torch for two seconds of CPU. `forked` is for tests of what runs do;
those of how processes are started, and one of training over them, start them as users do.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from bfpp.executor import __main__ as program
from bfpp.executor.processes.launcher import launch
from bfpp.executor.processes.launcher.children import Children, environments_of, exit_codes
from bfpp.executor.processes.launcher.member import ASK_WHERE, PARENT

IMPORTED = (
    "bfpp.executor.run.session",
    "hypothesis",
    "torch.distributed.pipelining",
    "torch.fx.experimental.symbolic_shapes",
)
"""What takes long to import, and some process that is forked needs."""


@contextmanager
def forked() -> Iterator[None]:
    """The launcher's processes are forked off the nursery, on systems where torch allows it."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.platform == "linux":
            patch.setattr(launch, "Children", Forked)
        yield


class Forked(Children):
    """The processes of a run, which are the nursery's children."""

    def __init__(self, directory: Path, processes: int, *rest: Any) -> None:
        self._nursery = nursery()
        self._logs = [directory / f"stderr-{number}.log" for number in range(processes)]
        environments = [
            {**os.environ, **each, PARENT: str(self._nursery.pid)}
            for each in environments_of(processes, *rest)
        ]
        place = (Path.cwd(), [*sys.path], directory)
        self._pids = self._nursery.ask(fork, place, environments, self._logs)

    def ended(self) -> dict[int, int]:
        found: dict[int, int] = self._nursery.ask(exit_codes, self._pids)
        return found

    def ask_where(self, process: int) -> None:
        os.kill(self._pids[process], ASK_WHERE)

    def ask_to_stop(self) -> None:
        for pid in self._pids:  # they are reaped at the end
            os.kill(pid, signal.SIGTERM)

    def close(self) -> None:
        self._nursery.ask(kill, self._pids)


class Nursery:
    """The process that the others are forked off; it has one thread."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._requests, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self.pid = process.pid

    def ask(self, function: Any, *arguments: object) -> Any:
        """What a function returns there."""
        self._requests.send((function, arguments))
        return self._requests.recv()


@cache
def nursery() -> Nursery:
    """One for all that a test process starts."""
    return Nursery()


# There


def serve(requests: Connection) -> None:
    """Do as the test process asks, until it ends."""
    os.setpgrp()  # Ctrl-C is the test process's matter
    for name in IMPORTED:
        import_module(name)
    with suppress(EOFError):
        while True:
            function, arguments = requests.recv()
            requests.send(function(*arguments))


def fork(
    place: tuple[Path, list[str], Path], environments: Sequence[dict[str, str]], logs: list[Path]
) -> list[int]:
    """The ids of new processes, one for each environment."""
    return [_fork(place, *each) for each in zip(environments, logs, strict=True)]


def _fork(place: tuple[Path, list[str], Path], environment: dict[str, str], log: Path) -> int:
    if pid := os.fork():
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # whichever of the two is first
        return pid
    try:
        os.setpgid(0, 0)
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ.clear()
        os.environ.update(environment)
        folder, sys.path[:], directory = place
        os.chdir(folder)
        sys.argv = [program.__name__, str(directory)]
        program.main()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def kill(pids: Sequence[int]) -> None:
    """End them, with all that they have started."""
    for pid in pids:
        os.killpg(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)

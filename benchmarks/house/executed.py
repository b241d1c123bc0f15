"""A pytest plugin: which functions of the product each test executes, and how long it takes.

`python -m pytest -p benchmarks.house.executed --executed FOLDER`. Each process writes a file of
JSON lines there: a test that passed, its seconds, and its functions as `path: name`. A function is
reported once a test, by `sys.monitoring`, so that tests take hardly longer (from Python 3.12 on).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("bfpp", "bfpp/schedules", "bfpp/traces", "bfpp/sim", "bfpp/executor")
"""The front door, and the four that stand apart from it."""
TOOL = 4
"""One of the numbers that Python leaves to tools other than its own."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the file to write."""
    parser.addoption("--executed", type=Path, metavar="FOLDER")


def pytest_configure(config: pytest.Config) -> None:
    """Begin, where it is asked for."""
    if folder := config.getoption("--executed"):
        config.pluginmanager.register(Recorder(folder))


def pytest_unconfigure() -> None:
    """Stop before modules are gone."""
    if sys.monitoring.get_tool(TOOL):
        sys.monitoring.set_events(TOOL, sys.monitoring.events.NO_EVENTS)
        sys.monitoring.register_callback(TOOL, sys.monitoring.events.PY_START, None)
        sys.monitoring.free_tool_id(TOOL)


class Recorder:
    """Functions executed in a process, test by test."""

    def __init__(self, folder: Path) -> None:
        self._path = folder.resolve() / f"{os.getpid()}.jsonl"
        self._functions: set[str] = set()
        self._names: dict[CodeType, str | None] = {}
        sys.monitoring.use_tool_id(TOOL, "bfpp mutations")
        sys.monitoring.register_callback(TOOL, sys.monitoring.events.PY_START, self._started)
        sys.monitoring.set_events(TOOL, sys.monitoring.events.PY_START)

    def _started(self, code: CodeType, offset: int) -> object:
        del offset
        if code not in self._names:
            self._names[code] = named(code)
        if name := self._names[code]:
            self._functions.add(name)
        return sys.monitoring.DISABLE

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Forget what the test before executed; fixtures of a module count for its first test."""
        del item
        self._functions.clear()
        sys.monitoring.restart_events()
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write what a test executed."""
        if report.when == "call" and report.passed and self._functions:
            record = [report.nodeid, report.duration, sorted(self._functions)]
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")


def named(code: CodeType) -> str | None:
    """The file of the product, and the outermost function in it, that a code object is of."""
    inside, _, path = code.co_filename.partition(f"{ROOT}/")
    if inside or not path.startswith("bfpp/"):
        return None
    return f"{path}: {code.co_qualname.partition('.<locals>')[0]}"

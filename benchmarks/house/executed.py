"""A pytest plugin: which lines of the product each test function executes, and how long it takes.

`python -m pytest -p benchmarks.house.executed --executed FOLDER --numprocesses N`. Each process
writes two files there: lines by function, as coverage.py keeps them, and the seconds of each test
that passed by its function, as lines of JSON. A test's parameters may be the product's own numbers,
so that none with the same name is there where one of these is another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from coverage import Coverage

ROOT = Path(__file__).parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the folder to write to."""
    parser.addoption("--executed", type=Path, metavar="FOLDER")


def pytest_configure(config: pytest.Config) -> None:
    """Begin where it is asked for, in the processes that execute tests."""
    folder = config.getoption("--executed")
    if folder and hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(folder.resolve() / str(os.getpid())))


class Recorder:
    """Lines executed in a process, test by test; fixtures of a module count for its first test."""

    def __init__(self, path: Path) -> None:
        self._seconds = path.with_suffix(".seconds")
        self._lines = Coverage(
            data_file=str(path.with_suffix(".lines")),
            include=[f"{ROOT}/bfpp/*"],
            config_file=False,
            messages=False,
        )
        self._lines.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Count what is executed for this test."""
        self._lines.switch_context(function_of(item.nodeid))
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write how long a test took."""
        if report.when == "call" and report.passed:
            with self._seconds.open("a") as file:
                file.write(json.dumps([function_of(report.nodeid), report.duration]) + "\n")

    def pytest_unconfigure(self) -> None:
        """Write what was executed."""
        self._lines.stop()
        self._lines.save()


def function_of(test: str) -> str:
    """The function of a test, without its parameters."""
    return test.partition("[")[0]

"""Limits and checks of tests that end the processes of a toy run."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from benchmarks.helpers.programs import alive
from bfpp.executor.processes import ProcessContext

DEATH = 5.0  # seconds in which a death or an exception must be told
HANG = 3.0
IN_THE_TASK = "in forward of stage 1, micro-batch 0"


def some_slow(cases: Iterable[object], *slow: object) -> list[object]:
    """The cases, with those marked that are skipped by default."""
    return [pytest.param(case, marks=pytest.mark.slow) if case in slow else case for case in cases]


def assert_gone(pids: list[int], within: float) -> None:
    assert len(pids) == 2
    deadline = time.monotonic() + within
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(pids) == []


def nothing(_: ProcessContext, words: str) -> str:
    return words

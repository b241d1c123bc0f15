"""Timeouts of a run's processes."""

from __future__ import annotations

import pytest

from bfpp.commands.run import add_arguments
from bfpp.options.running.run import limits_of
from bfpp.terminal.parser import Parser


@pytest.mark.parametrize(
    ("words", "at_the_peak", "hang"),
    [
        ([], None, 60.0),
        ([], 0.5, 60.0),  # ten times that is shorter
        ([], 9.0, 90.0),
        (["--task-timeout", "7"], 9.0, 7.0),
    ],
)
def test_a_task_may_take_as_long_as_a_slow_step(
    words: list[str], at_the_peak: float | None, hang: float
) -> None:
    parser = Parser()
    add_arguments(parser)
    assert limits_of(parser.parse_args(["1f1b", *words]), at_the_peak).hang == pytest.approx(hang)

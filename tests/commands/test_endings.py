"""How commands end: their exit codes, and what is said where no result can be."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest

from bfpp import __version__
from bfpp.core.sources import CoreError
from bfpp.options import shared
from bfpp.schedules import InvalidInput

Ending = Callable[[BaseException], tuple[int, list[str]]]


@pytest.fixture
def ending(bfpp: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> Ending:
    """What a command ends with where something raises an error."""

    def end(error: BaseException) -> tuple[int, list[str]]:
        def fail(_: object) -> None:
            raise error

        monkeypatch.setattr(shared, "pipeline", fail)
        code, out, said = bfpp("orders gpipe --pp 2")
        assert out == ""
        return code, said.splitlines()

    return end


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InvalidInput("--pp: is odd"), 2, "bfpp orders: --pp: is odd"),
        (CoreError("older than\nits sources"), 2, "bfpp: older than its sources"),
        (KeyboardInterrupt(), 130, "bfpp orders: interrupted"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    ending: Ending, error: BaseException, code: int, line: str
) -> None:
    assert ending(error) == (code, [line])


def test_more_than_memory_holds_is_one_line(ending: Ending) -> None:
    code, [line] = ending(MemoryError())
    assert code == 2
    assert line.startswith("bfpp orders: ")
    assert "memory" in line


def test_a_fault_of_the_program_asks_for_a_report(ending: Ending) -> None:
    code, lines = ending(ZeroDivisionError("by nothing"))
    assert code == 70
    assert lines[0] == "Traceback (most recent call last):"
    *_, error, request, versions, command = lines
    assert error == "ZeroDivisionError: by nothing"
    assert request.startswith("bfpp: ZeroDivisionError is a fault of the program")
    assert versions.startswith(f"bfpp {__version__}, Python {platform.python_version()}, ")
    assert command == "bfpp orders gpipe --pp 2"

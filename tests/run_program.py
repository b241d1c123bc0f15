"""`bfpp run` with a small model, in this process."""

from __future__ import annotations

import pytest

from benchmarks.programs import Ended, command
from bfpp.command_line import main


def run_here(capsys: pytest.CaptureFixture[str], *options: object) -> Ended:
    """`bfpp run` in this process, with a child for each rank; or one, if it is local."""
    try:
        code = main(command(*options))
    except SystemExit as left:
        code = int(str(left.code))
    return Ended(code, *capsys.readouterr())

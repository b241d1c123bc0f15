"""`bfpp run` with a small model, in this process: a child for each rank; or one, if it is local."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO

import pytest
from torch.distributed import HashStore

from benchmarks.helpers.programs import Ended, command
from bfpp.command_line import main
from bfpp.executor import processes
from bfpp.executor.processes import Limits, Message, ProcessContext, launch
from bfpp.executor.processes.launcher.process import Arguments, Entry, Outcome
from bfpp.executor.processes.watch.watch import Watch
from tests.helpers.nursery import forked


def run_here(capsys: pytest.CaptureFixture[str], *options: object) -> Ended:
    """A program that a test runs, and its output."""
    code = _code_of(*options)
    return Ended(code, *capsys.readouterr())


def run_for_many(*options: object) -> Ended:
    """A program that a fixture runs for all tests of a module, where there is no `capsys`."""
    with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
        code = _code_of(*options)
    return Ended(code, output.getvalue(), errors.getvalue())


def _code_of(*options: object) -> int:
    try:
        return main(command(*options))
    except SystemExit as left:
        return int(str(left.code))


@contextmanager
def started_here() -> Iterator[None]:
    """Runs of one process run in this one, and others are forked: torch is not imported again.

    For runs that succeed: nobody watches this process to report how it failed.
    """
    with pytest.MonkeyPatch.context() as patch:
        assert processes.launch is launch  # where commands import it from
        patch.setattr(processes, "launch", _launch_here)
        yield


def _launch_here(
    entry: Entry[Arguments, Outcome],
    arguments: Arguments,
    count: int,
    limits: Limits,
    on_message: Callable[[Message], None],
    interface: str | None,
) -> Outcome | None:
    if count > 1:
        with forked():
            return launch(entry, arguments, count, limits, on_message, interface)

    def send(message: Message) -> None:
        on_message(json.loads(json.dumps(message)))

    context = ProcessContext(0, 1, 0, HashStore(), Watch(), limits, send)
    given: Arguments = pickle.loads(pickle.dumps(arguments))
    outcome: Outcome = pickle.loads(pickle.dumps(entry(context, given)))
    return outcome

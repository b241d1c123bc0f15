"""Which tests run by default, and how: the same examples every time, however slow the machine.

HYPOTHESIS_PROFILE=fresh draws new examples, and prints how to draw one that fails again.

And the command line, as fixtures.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO
from types import SimpleNamespace

import pytest
from hypothesis import settings

from bfpp.command_line import main
from bfpp.terminal.outputs import prepared
from bfpp.terminal.printing import SCHEMA
from tests.helpers.described import require_described

settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors are faster so
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # processes compile the package once,
sys.dont_write_bytecode = False  # and workers the tests


LONG = (
    "executor/processes/test_safety.py",
    "executor/train/test_training_processes.py",
    "executor/processes/test_stopping.py",
    "schedules/validity/test_validity.py",
    "executor/processes/test_launch.py",
    "house/test_docs.py",
    "executor/processes/test_torchrun.py",
    "commands/test_study.py",
    "terminal/test_outputs.py",
    "commands/test_faults.py",
    "executor/dispatch/test_exactness.py",
    "sim/synthesis/test_synthesis_choices.py",
    "commands/test_malformed.py",
    "executor/run/test_resume.py",
    "schedules/operations/test_rows.py",
    "executor/dispatch/backends/test_torch_pipelining.py",
    "sim/search/test_search.py",
    "traces/profiles/test_import_executor.py",
)
"""Files that take longest, which begin first: none is left to run alone at the end.

Those that wait for processes stand among those that compute.
"""


def _begins(item: pytest.Item) -> int:
    """The place of a test's file among all."""
    name = item.path.as_posix().rpartition("/tests/")[2]
    return LONG.index(name) if name in LONG else len(LONG)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_begins)
    if os.environ.get("BFPP_SLOW") == "1" or "slow" in config.getoption("-m"):
        return
    skip = pytest.mark.skip(reason="slow: set BFPP_SLOW=1 or choose it with -m slow")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def _one_package():
    """The root of the repository is on the path: its folders are imported as bfpp's alone."""
    yield
    assert {"executor", "schedules", "sim", "traces"} & sys.modules.keys() == set()


@pytest.fixture(scope="session", autouse=True)
def _answers_are_described():
    """All JSON that commands print in this process is as their schemas say."""
    command = ""

    @contextmanager
    def known(options) -> Iterator[None]:
        nonlocal command
        command = options.command
        with prepared(options):
            yield

    def dumps(record, **settings):
        text = json.dumps(record, **settings)
        require_described(command, json.loads(text))
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bfpp.command_line.prepared", known)
        patch.setattr("bfpp.terminal.printing.json", SimpleNamespace(dumps=dumps))
        yield


@pytest.fixture
def bfpp(capsys):
    """Runs a command, one line or its words: exit code, standard output, standard error."""
    capsys.readouterr()

    def run(*words):
        words = words[0].split() if len(words) == 1 else map(str, words)
        try:
            code = main([*words])
        except SystemExit as exited:
            code = exited.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def printed():
    """Runs a command that ends well, for fixtures of many tests: its standard output."""

    def run(*words):
        with redirect_stdout(StringIO()) as output, redirect_stderr(StringIO()) as errors:
            code = main([*map(str, words)])
        assert code == 0, errors.getvalue()
        return output.getvalue()

    return run


@pytest.fixture(scope="module")
def pipelining():
    """PyTorch's schedules, for tests that compare with them."""
    return pytest.importorskip(
        "torch.distributed.pipelining.schedules",
        reason="compares with torch.distributed.pipelining",
        exc_type=ImportError,
    )


@pytest.fixture
def one_thread():
    """Torch computes in one thread: small tensors are faster so."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def cpu_clock():
    """Searches for orders count CPU time: on a busy machine they try as much as on an idle one."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("deadline", "search.annealing"):
            clock = SimpleNamespace(monotonic=time.process_time)
            patch.setattr(import_module(f"bfpp.sim.synthesis.{module}"), "time", clock)
        yield


@pytest.fixture
def forked_processes():
    """Runs fork their processes off one that has imported torch."""
    from tests.helpers.nursery import forked

    with forked():
        yield


@pytest.fixture
def one_process():
    """Successful runs that would start one process run in this one, others fork theirs."""
    from tests.helpers.run_program import started_here

    with started_here():
        yield


@pytest.fixture
def answer(bfpp):
    """Runs a command with --json: the one object that it prints, less the version of all."""

    def run(*words):
        words = words[0].split() if len(words) == 1 else words
        code, out, err = bfpp(*words, "--json")
        assert (code, err, out.count("\n")) == (0, "", 1)
        record = json.loads(out)
        assert record.pop("schema") == SCHEMA
        return record

    return run

"""Processes that torchrun or a shell starts, and the end of their parent."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

import pytest

from benchmarks.helpers.programs import alive
from bfpp.executor.processes.launcher.launch import RunFailed, launch
from bfpp.executor.processes.sealed_store import SECRET
from bfpp.executor.processes.watch.heartbeats import Limits
from tests.helpers import ROOT
from tests.helpers.toy_processes import DEATH, HANG, IN_THE_TASK, assert_gone, nothing, some_slow
from tests.helpers.toy_run import Toy

pytestmark = pytest.mark.usefixtures("own_temporary_directory")

OWN = ("-c", "from tests.helpers import toy_run; toy_run.main()")
TORCHRUN = (
    "-m",
    "torch.distributed.run",
    "--nproc-per-node=2",
    "--module",
    "tests.helpers.toy_run",
)
ENDLESS = Toy(steps=10**9, when=-1)


@contextmanager
def program(
    arguments: tuple[str, ...], toy: Toy, variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, *arguments, json.dumps(asdict(toy))],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": tempfile.gettempdir(), "PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def pids_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes that it started, once they run."""
    assert process.stdout
    pids: list[int] = json.loads(process.stdout.readline())["pids"]
    return pids


@pytest.mark.slow  # of `bfpp run`, `test_safety` says so by default
def test_a_killed_parent_leaves_no_orphans() -> None:
    with program(OWN, ENDLESS) as parent:
        pids = pids_of(parent)
        assert alive(pids) == pids
        parent.kill()
        assert_gone(pids, within=DEATH)


def test_an_interrupt_ends_all_at_once(tmp_path: Path) -> None:
    with program(OWN, ENDLESS) as parent:
        pids = pids_of(parent)
        parent.send_signal(signal.SIGINT)
        _, errors = parent.communicate(timeout=20)
    assert parent.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert_gone(pids, within=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_under_torchrun_the_first_process_has_the_outcome() -> None:
    with program(TORCHRUN, Toy(steps=1)) as run:
        output, _ = run.communicate()
    assert run.returncode == 0
    outcomes = [json.loads(line)["outcome"] for line in output.splitlines() if "outcome" in line]
    assert sorted(outcomes, key=bool) == [None, {"value": 2.0, "threads": 1}]


UNDER_TORCHRUN = {
    "die": ("gave no sign of life for 2 s, last seen in step 3", 60.0),
    "fail": ("failed in step 3,", 60.0),
    "stop": ("gave no sign of life for", HANG),
    "loop": ("hangs in step 3,", HANG),
}


@pytest.mark.parametrize("misfortune", some_slow(UNDER_TORCHRUN, "fail", "stop", "loop"))
def test_under_torchrun_the_others_name_the_culprit(misfortune: str) -> None:
    message, hang = UNDER_TORCHRUN[misfortune]
    with program(TORCHRUN, Toy(misfortune=misfortune, pause=1.5, hang=hang)) as run:
        pids = pids_of(run)
        _, errors = run.communicate(timeout=60)
    told = [line for line in errors.splitlines() if line.startswith("bfpp:")]
    assert [line.startswith(f"bfpp: rank 1 (process 1) {message}") for line in told] == [True]
    assert IN_THE_TASK in told[0]
    assert "Root Cause" in errors
    assert "rank      : 1" in errors.partition("Root Cause")[2]
    assert_gone(pids, within=0)


@pytest.mark.slow
def test_a_killed_torchrun_leaves_no_orphans() -> None:
    with program(TORCHRUN, ENDLESS) as run:
        pids = pids_of(run)
        run.kill()
        assert_gone(pids, within=DEATH)
        assert run.stderr
        told = [line for line in run.stderr if line.startswith("bfpp:")]
    assert len(told) == 1
    assert "connection to the run's store is lost" in told[0]


# Processes that somebody started by hand, with torchrun's variables: the first hosts the store


@contextmanager
def by_hand(toy: Toy) -> Iterator[list[subprocess.Popen[str]]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    address = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        SECRET: "of the run",
    }
    with (
        program(OWN, toy, address | {"RANK": "0"}) as first,
        program(OWN, toy, address | {"RANK": "1"}) as second,
    ):
        yield [first, second]


@pytest.mark.slow
def test_the_host_of_the_store_stays_for_the_others() -> None:
    with by_hand(Toy(steps=1)) as processes:
        outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert json.loads(outputs[0][0].splitlines()[-1])["outcome"]["value"] == 2.0
    assert json.loads(outputs[1][0].splitlines()[-1])["outcome"] is None
    assert not any("bfpp" in errors for _, errors in outputs)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_store_that_nobody_hosts_is_told_in_one_line(
    host: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    joined = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": str(port)}
    for name, value in joined.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with pytest.raises(RunFailed) as failure:
        launch(nothing, "to do", 2, Limits(start=0.5))
    assert re.fullmatch(
        rf"process 1 cannot reach the run's store at {host}, port {port}: .*refused",
        str(failure.value),
    )
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_the_first_process_names_those_that_have_not_started() -> None:
    with by_hand(Toy(late=60.0, start=10.0)) as processes:
        _, errors = processes[0].communicate(timeout=60)
    assert processes[0].returncode == 1
    assert re.fullmatch(
        r"bfpp: process 1 has not started after 1\d s\n"
        r"  rank 0 \(process 0\) waits for process 1 in joining the process group\n",
        errors,
    )


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_the_one_that_is_left_says_who_is_lost(killed: int) -> None:
    with by_hand(ENDLESS) as processes:
        pids = pids_of(processes[0])
        processes[killed].kill()
        _, errors = processes[1 - killed].communicate(timeout=20)
        assert_gone(pids, within=0)
    (told,) = [line for line in errors.splitlines() if line.startswith("bfpp:")]
    assert ("the run's store is lost", "rank 1 (process 1) gave no sign of life")[killed] in told

"""Real processes, ended in every way: one message that names who and where, nothing left behind."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Timer
from types import MappingProxyType

import pytest

from benchmarks.measure import ROOT
from benchmarks.programs import alive, children
from bfpp.executor.processes.heartbeats import Limits
from bfpp.executor.processes.launch import RunFailed, launch
from bfpp.executor.processes.place import Message, Place, cores
from tests.toy_run import Total, Toy, train, wait_for_each_other

DEATH = 5.0  # seconds in which a death or an exception must be told
HANG = 3.0
PATIENT = Limits()
IMPATIENT = Limits(hang=HANG)


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def some_slow(cases: Iterable[object], *slow: object) -> list[object]:
    """The cases, with those marked that are skipped by default."""
    return [pytest.param(case, marks=pytest.mark.slow) if case in slow else case for case in cases]


class Run:
    """What the parent saw of a run that failed."""

    def __init__(self, toy: Toy, limits: Limits = PATIENT, kill_after: float | None = None) -> None:
        self.pids: list[int] = []
        self._kill_after = kill_after
        self._toy = toy
        self.told = time.monotonic()
        with pytest.raises(RunFailed) as failure:
            launch(train, toy, 2, limits, self._hear)
        self.seconds = time.monotonic() - self.told - toy.pause
        self.failure = failure.value
        self.message = str(failure.value)

    def _hear(self, message: Message) -> None:
        self.told = time.monotonic()
        if "pids" in message:
            self.pids = message["pids"]
            if self._kill_after is not None:
                Timer(self._kill_after, os.kill, (self.pids[1], signal.SIGKILL)).start()


def assert_gone(pids: list[int], within: float) -> None:
    assert len(pids) == 2
    deadline = time.monotonic() + within
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(pids) == []


# Our own launcher


def test_the_outcome_and_the_messages_of_the_first_process(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    messages: list[Message] = []
    outcome = launch(train, Toy(steps=3), 2, on_message=messages.append)
    assert outcome == Total(14.0, max(1, cores() // 2))
    assert messages[1:] == [{"step": step, "total": 2.0 ** (step + 2) - 2} for step in range(3)]
    assert_gone(messages[0]["pids"], within=0)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


IN_THE_TASK = "in forward of stage 1, micro-batch 0"


LAST_SEEN = f"last seen in step 3, {IN_THE_TASK}"
ENDS = {
    "fail": f"failed in step 3, {IN_THE_TASK}: ValueError: the weights are gone",
    "die": f"was killed by SIGKILL, {LAST_SEEN}",
    "crash": f"was killed by SIGSEGV, {LAST_SEEN}",
    "leave": f"exited with code 0, {LAST_SEEN}",
    "give up": f"exited with code 7, {LAST_SEEN}",
}


@pytest.mark.parametrize("misfortune", some_slow(ENDS, "die", "crash", "leave", "give up"))
def test_a_process_that_ends_is_named_with_its_task(misfortune: str, tmp_path: Path) -> None:
    run = Run(Toy(misfortune=misfortune, pause=1.5))
    assert run.message == f"rank 1 (process 1) {ENDS[misfortune]}"
    assert run.failure.process == 1
    details = run.failure.details
    assert "Warning" not in details
    assert run.seconds < DEATH
    assert_gone(run.pids, within=0)
    assert ('raise ValueError("the weights are gone")' in details) is (misfortune == "fail")
    (directory,) = tmp_path.iterdir()
    assert details.endswith(f"The logs of all processes are in {directory}")
    logs = [file.read_text() for file in directory.rglob("stderr.log")]
    assert len(logs) == 2
    assert all("this belongs to the log" in log for log in logs)


@pytest.mark.parametrize("misfortune", some_slow(["leave", "die"], "die"))
def test_the_task_that_a_process_ended_in_is_named_at_once(misfortune: str) -> None:
    """Not the one that it was in when it was last heard of."""
    run = Run(Toy(misfortune=misfortune, steps=1000, when=700))
    end = ENDS[misfortune].replace("step 3", "step 700")
    assert run.message == f"rank 1 (process 1) {end}"


SILENT = rf"gave no sign of life for \d s, {LAST_SEEN}"
HANGS = {
    "loop": (rf"hangs in step 3, {IN_THE_TASK}, for \d s", "in forever"),
    "stop": (SILENT, ""),
    "hold the lock": (SILENT, "in hold_the_lock"),
}


@pytest.mark.parametrize("misfortune", some_slow(HANGS, "stop", "hold the lock"))
def test_a_process_that_hangs_is_named_with_its_task(misfortune: str) -> None:
    message, place_in_code = HANGS[misfortune]
    run = Run(Toy(misfortune=misfortune, pause=1.5), IMPATIENT)
    assert run.failure.process == 1
    assert re.fullmatch(rf"rank 1 \(process 1\) {message}", run.message)
    assert place_in_code in run.failure.details
    assert "guard.py" not in run.failure.details
    assert run.seconds < HANG + DEATH
    assert_gone(run.pids, within=0)


def test_the_task_that_a_process_stopped_in_is_named() -> None:
    run = Run(Toy(misfortune="stop", steps=1000, when=700), IMPATIENT)
    silent = SILENT.replace("step 3", "step 700")
    assert re.fullmatch(rf"rank 1 \(process 1\) {silent}", run.message)
    assert_gone(run.pids, within=0)


def test_processes_that_wait_for_each_other() -> None:
    with pytest.raises(RunFailed, match="nothing has moved for 3 s") as failure:
        launch(wait_for_each_other, Toy(), 2, IMPATIENT)
    assert str(failure.value).splitlines()[1:] == [
        "  rank 0 (process 0) waits for rank 1 (process 1) in step 0, in receive 5",
        "  rank 1 (process 1) waits for rank 0 (process 0) in step 0, in receive 6",
    ]


def test_a_process_that_starts_late_is_waited_for() -> None:
    """Longer than a task may take, and than it may be that nothing moves."""
    outcome = launch(train, Toy(steps=2, late=2 * HANG), 2, IMPATIENT)
    assert outcome is not None
    assert outcome.value == 6.0


@pytest.mark.slow
def test_a_process_that_has_not_started_in_time_is_named() -> None:
    limits = Limits(hang=HANG, start=15.0)
    with pytest.raises(RunFailed) as failure:
        launch(train, Toy(late=60.0), 2, limits)
    assert re.fullmatch(
        r"process 1 has not started after \d+ s\n"
        r"  rank 0 \(process 0\) waits for process 1 in joining the process group",
        str(failure.value),
    )
    assert "in dawdle" in failure.value.details
    assert failure.value.process == 1


@pytest.mark.parametrize("seed", some_slow(range(20), *range(1, 20)))
def test_a_kill_at_any_moment_is_told_as_such(seed: int) -> None:
    moment = random.Random(seed).uniform(0, 1.0)
    run = Run(Toy(steps=10**9), kill_after=moment)
    assert run.message.startswith(("rank 1 (process 1) was killed by SIGKILL", "process 1 was"))
    assert run.message.count("\n") == 0
    assert_gone(run.pids, within=0)


@pytest.mark.parametrize("seed", some_slow(range(8), *range(1, 8)))
def test_a_kill_while_the_processes_start_is_told_as_such(seed: int) -> None:
    others = set(children(os.getpid()))
    timer = Timer(random.Random(seed).uniform(0.1, 4.0), kill_a_child, [others])
    timer.start()
    with pytest.raises(RunFailed) as failure:
        launch(train, Toy(steps=10**9), 2)
    assert re.match(r"(rank . \()?process .\)? was killed by SIGKILL\b", str(failure.value))
    assert set(children(os.getpid())) <= others


def kill_a_child(others: set[int]) -> None:
    while not (started := [pid for pid in children(os.getpid()) if pid not in others]):
        time.sleep(0.01)
    os.kill(started[-1], signal.SIGKILL)


def test_a_single_process_is_enough() -> None:
    assert launch(nothing, "to do", 1) == "to do"


def nothing(_: Place, words: str) -> str:
    return words


def test_an_entry_that_others_cannot_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nothing, "__module__", "__main__")
    with pytest.raises(ValueError, match="nothing must be in a module that can be imported"):
        launch(nothing, "to do", 2)


def test_a_launcher_that_started_another_number(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in joined.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="needs 2 processes, and torchrun started 3"):
        launch(nothing, "to do", 2)


# The end of the parent, and torchrun

OWN = ("-c", "from tests import toy_run; toy_run.main()")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--module", "tests.toy_run")
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
    address = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
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

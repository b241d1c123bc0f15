"""Real processes, ended in every way: one message that names who and where, nothing left behind."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path
from threading import Timer

import pytest

from benchmarks.helpers.programs import children
from bfpp.executor.processes.launcher.launch import RunFailed, launch
from bfpp.executor.processes.launcher.process_context import Message, cores
from bfpp.executor.processes.watch.heartbeats import Limits
from tests.helpers.toy_processes import DEATH, HANG, IN_THE_TASK, assert_gone, nothing, some_slow
from tests.helpers.toy_run import Total, Toy, train, wait_for_each_other

pytestmark = pytest.mark.usefixtures("own_temporary_directory")

PATIENT = Limits()
IMPATIENT = Limits(hang=HANG)


class Run:
    """The parent's view of a run that failed."""

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


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.parametrize("misfortune", some_slow(HANGS, "stop", "hold the lock"))
def test_a_process_that_hangs_is_named_with_its_task(misfortune: str) -> None:
    message, place_in_code = HANGS[misfortune]
    run = Run(Toy(misfortune=misfortune, pause=1.5), IMPATIENT)
    assert run.failure.process == 1
    assert re.fullmatch(rf"rank 1 \(process 1\) {message}", run.message)
    assert place_in_code in run.failure.details
    assert "watchdog.py" not in run.failure.details
    assert run.seconds < HANG + DEATH
    assert_gone(run.pids, within=0)


@pytest.mark.usefixtures("forked_processes")
def test_the_task_that_a_process_stopped_in_is_named() -> None:
    run = Run(Toy(misfortune="stop", steps=1000, when=700), IMPATIENT)
    silent = SILENT.replace("step 3", "step 700")
    assert re.fullmatch(rf"rank 1 \(process 1\) {silent}", run.message)
    assert_gone(run.pids, within=0)


@pytest.mark.usefixtures("forked_processes")
def test_processes_that_wait_for_each_other() -> None:
    with pytest.raises(RunFailed, match="nothing has moved for 3 s") as failure:
        launch(wait_for_each_other, Toy(), 2, IMPATIENT)
    assert str(failure.value).splitlines()[1:] == [
        "  rank 0 (process 0) waits for rank 1 (process 1) in step 0, in receive 5",
        "  rank 1 (process 1) waits for rank 0 (process 0) in step 0, in receive 6",
    ]


@pytest.mark.usefixtures("forked_processes")
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

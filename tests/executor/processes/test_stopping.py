"""SIGTERM: a run stops after the step under way, saves and says so; before a step, at once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from benchmarks.helpers.programs import (
    MODELS,
    alive,
    children,
    lines_of,
    program,
    ranks_of,
    steps_of,
    unlogged,
    wait_for,
)
from bfpp.executor import checkpoint
from bfpp.executor.events import Message
from bfpp.executor.model.sources import FunctionSource
from bfpp.executor.processes import STOPPED, ProcessContext, Terminated, launch
from bfpp.executor.processes.launcher.sigterm import ECHO, Stop
from bfpp.executor.run.session import TrainingResult, train
from bfpp.executor.settings import BackendName, Saving
from bfpp.executor.train.job import Job
from bfpp.schedules import Communication, Layout, find_schedule
from tests.helpers.run_program import run_here, started_here
from tests.helpers.training_runs import run_locally

SOON = 10.0
JOB = Job(
    find_schedule("gpipe"),
    Layout(2, 4),
    Communication(),
    FunctionSource(MODELS, "regression"),
    10**6,
)
TWO = ("gpipe", "--pp", 2, "--microbatches", 4)
ENDLESS = (*TWO, "--steps", 10**6)
TORCHRUN = (
    "-m", "torch.distributed.run", "--nproc-per-node=2", "--module", "bfpp",
)  # fmt: skip


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


# Our own launcher, from here


class SlowSave:
    """Saves as a run does, but that it takes a second."""

    def __init__(self) -> None:
        self.save = checkpoint.save

    def __call__(self, *arguments: Any) -> Path:
        time.sleep(1.0)
        return self.save(*arguments)


def saving_slowly(context: ProcessContext, job: Job) -> TrainingResult | None:
    checkpoint.save = SlowSave()  # type: ignore[assignment]
    return train(context, job)


CPU = pytest.param(BackendName.CPU, marks=pytest.mark.slow)


@pytest.mark.parametrize("backend", [CPU, BackendName.LOCAL])
def test_a_signal_during_a_save_lets_it_end_and_no_other_step_begin(
    backend: BackendName, tmp_path: Path
) -> None:
    others, heard = {*children(os.getpid())}, list[Message]()

    def hear(message: Message) -> None:
        heard.append(message)
        if message["event"] == "step" and message["step"] == 1:
            time.sleep(0.3)  # the save of two steps has begun
            terminate()

    job = replace(JOB, backend=backend, saving=Saving(tmp_path, every=2))
    outcome = launch(saving_slowly, job, job.processes, on_message=hear)
    assert outcome
    assert outcome.stopped
    assert [report.step for report in outcome.reports] == [0, 1]
    assert checkpoint.complete(tmp_path) == [outcome.saved]
    assert [message["event"] for message in heard] == ["begin", "step", "step", "save", "end"]
    assert heard[-1]["how"] == "stopped"
    assert {*children(os.getpid())} <= others
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("forked_processes")
def test_the_last_step_is_the_end_whatever_is_asked(tmp_path: Path) -> None:
    def hear(message: Message) -> None:
        if message["event"] == "step":
            time.sleep(0.3)
            terminate()

    saving = Saving(tmp_path, every=1)
    job = replace(JOB, steps=1, backend=BackendName.LOCAL, saving=saving)
    outcome = launch(saving_slowly, job, 1, on_message=hear)
    assert outcome
    assert not outcome.stopped
    assert outcome.saved


def never_offering(context: ProcessContext, _: None) -> None:
    context.send({"event": "here"})
    time.sleep(600)


def test_what_does_not_offer_to_stop_ends_at_once() -> None:
    others, heard = {*children(os.getpid())}, list[Message]()

    def hear(message: Message) -> None:
        heard.append(message)
        if message["event"] == "here":
            terminate()

    with pytest.raises(Terminated) as ended:
        launch(never_offering, None, 1, on_message=hear)
    assert ended.value.code == STOPPED == 143
    assert heard[-1] == {"event": "end", "how": "interrupted", "reason": ""}
    assert {*children(os.getpid())} <= others


def test_what_a_listener_raises_ends_the_run_and_comes_out() -> None:
    others = {*children(os.getpid())}

    def hear(message: Message) -> None:
        if message["event"] == "step" and message["step"] == 2:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        launch(train, replace(JOB, backend=BackendName.LOCAL), 1, on_message=hear)
    assert {*children(os.getpid())} <= others


def test_a_second_request_counts_but_not_an_echo_of_the_first() -> None:
    now = [5.0]
    stop = Stop(lambda: now[0])
    assert not stop.asked
    stop.ask()
    now[0] += ECHO / 2
    stop.ask()
    assert (stop.asked, stop.is_urgent) == (True, False)
    now[0] += ECHO
    stop.ask()
    assert stop.is_urgent


# As a command


@contextmanager
def meanwhile(condition: Callable[[], object], work: Callable[[], None]) -> Iterator[None]:
    """Once a condition holds, does some work in a thread."""

    def do() -> None:
        wait_for(condition)
        work()

    thread = Thread(target=do)
    thread.start()
    yield
    thread.join()


def ended(process: subprocess.Popen[str], pids: Mapping[int, int]) -> tuple[str, str]:
    """Its output, once it and its processes are gone.

    Those that it had only just started end by themselves, once they see that it is gone.
    """
    since = time.monotonic()
    output, errors = process.communicate(timeout=60)
    assert time.monotonic() - since < 2 * SOON, errors
    wait_for(lambda: not alive(list(pids.values())), SOON)
    return output, errors


@pytest.mark.parametrize("to_all", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_program_saves_and_goes_on_as_if_nothing_had_been(
    to_all: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, metrics, trace = (tmp_path / name for name in ("saved", "metrics", "trace.json"))
    files = ("--checkpoint", saved, "--metrics", metrics, "--trace", trace)
    with program(*ENDLESS, *files, "--json", "--verify") as process:
        wait_for(lambda: len(steps_of(metrics)) > 3)
        pids = ranks_of(process)
        # SLURM signals every process of a job.
        for pid in (*(pids.values() if to_all else ()), process.pid):
            os.kill(pid, signal.SIGTERM)
        output, errors = ended(process, pids)
    assert process.returncode == 143, errors
    record = json.loads(output)
    steps, last = len(record["losses"]), checkpoint.latest(saved)
    assert record["stopped"] is True
    assert record["saved"] == str(last)
    assert unlogged(errors) == [
        f"bfpp run: stopped by SIGTERM after step {steps - 1}; saved {last}, go on with --resume",
        f"wrote {trace}",
    ]
    assert [line["loss"] for line in steps_of(metrics)] == record["losses"]
    assert [line["event"] for line in lines_of(metrics)[-2:]] == ["save", "end"]
    if to_all:
        return
    resumed = (*TWO, "--steps", steps + 2, "--checkpoint", saved, "--metrics", metrics, "--resume")
    with started_here():
        after = run_here(capsys, *resumed, "--json", "--backend", "local").record
    samples = replace(JOB, microbatch_size=4).plan()
    straight = [report.loss for report in run_locally(samples, range(steps + 2))[0]]
    assert record["losses"] + after["losses"] == straight
    assert [line["loss"] for line in steps_of(metrics)] == straight


@pytest.mark.usefixtures("forked_processes")
def test_a_local_run_without_checkpoints_prints_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = tmp_path / "metrics"
    with meanwhile(lambda: len(steps_of(metrics)) > 3, terminate):
        left = run_here(capsys, *ENDLESS, "--backend", "local", "--metrics", metrics)
    assert left.code == 143
    assert re.fullmatch(
        r"bfpp run: stopped by SIGTERM after step \d+; nothing is saved without --checkpoint",
        left.said[0],
    )
    assert f"0 to {steps_of(metrics)[-1]['step']}" in left.output


def terminate_twice() -> None:
    time.sleep(1.0)  # the third step has begun
    terminate()
    time.sleep(1.5 * ECHO)
    terminate()


@pytest.mark.usefixtures("forked_processes")
def test_a_second_signal_ends_a_run_that_hangs_and_says_how_far_it_came(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, saved = ("--model", f"{MODELS}:hanging"), tmp_path / "saved"
    saving = ("--checkpoint", saved, "--save-every", 1)
    with meanwhile(lambda: len(checkpoint.complete(saved)) == 2, terminate_twice):
        left = run_here(capsys, *ENDLESS, *model, *saving)
    assert (left.code, left.output) == (143, "")
    told, last = left.errors.splitlines()[-2:]
    assert told.startswith("bfpp run: done before: steps 0 to 1; loss, first and last: ")
    assert told.endswith(f"; the last checkpoint is {saved / 'save-000002-step-2'}")
    assert last == "bfpp run: ended at once by SIGTERM"


@pytest.mark.parametrize("pause", [0.0, pytest.param(2.0, marks=pytest.mark.slow)])
def test_before_the_first_step_it_ends_without_a_save(pause: float, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    waiting = ("--model", f"{MODELS}:waiting")
    with program(*ENDLESS, *waiting, "--checkpoint", saved) as process:
        wait_for(lambda: len(ranks_of(process)) == 2)
        time.sleep(pause)
        pids = ranks_of(process)
        process.terminate()
        output, errors = ended(process, pids)
    assert (process.returncode, output) == (143, ""), errors
    assert errors.splitlines() == ["bfpp run: ended at once by SIGTERM"]
    assert checkpoint.latest(saved) is None


# Under torchrun, which asks its processes to end when it is asked, and when one of them has died


def under_torchrun(*options: object) -> subprocess.Popen[str]:
    return program(*options, before=TORCHRUN, variables={"OMP_NUM_THREADS": "1"})


def told_by_bfpp(errors: str) -> Sequence[str]:
    return [line for line in errors.splitlines() if line.startswith(("bfpp:", "bfpp run:"))]


def test_torchrun_that_is_asked_to_end_lets_the_run_save(tmp_path: Path) -> None:
    saved, metrics = tmp_path / "saved", tmp_path / "metrics"
    files = ("--checkpoint", saved, "--metrics", metrics)
    with under_torchrun(*ENDLESS, *files, "--json") as process:
        wait_for(lambda: len(steps_of(metrics)) > 3)
        pids = ranks_of(process)
        process.terminate()
        output, errors = ended(process, pids)
    (line,) = (line for line in output.splitlines() if line.startswith("{"))
    record, last = json.loads(line), checkpoint.latest(saved)
    steps = len(record["losses"])
    assert record["stopped"] is True
    assert told_by_bfpp(errors) == [
        f"bfpp run: stopped by SIGTERM after step {steps - 1}; saved {last}, go on with --resume"
    ]
    assert [line["loss"] for line in steps_of(metrics)] == record["losses"]
    assert process.returncode != 0


@pytest.mark.slow
def test_torchrun_that_lost_a_process_hears_who_it_was(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics"
    with under_torchrun(*ENDLESS, "--metrics", metrics) as process:
        wait_for(lambda: len(steps_of(metrics)) > 3)
        pids = ranks_of(process)
        os.kill(pids[1], signal.SIGKILL)
        _, errors = ended(process, pids)
    told = [line for line in told_by_bfpp(errors) if "done before" not in line]
    assert len(told) == 1, errors
    assert re.match(r"bfpp: rank 1 \(process 1\) gave no sign of life for \d s", told[0])
    assert lines_of(metrics)[-1]["how"] == "failed"
    assert any(
        line.startswith("bfpp run: done before: steps 0 to ") for line in told_by_bfpp(errors)
    )

"""Runs that are killed, hang, raise or disagree: one message, nothing left, nothing lost."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.helpers.faulty_models import WIDTH
from benchmarks.helpers.programs import (
    MODELS,
    alive,
    program,
    ranks_of,
    step_of,
    unlogged,
    wait_for,
)
from bfpp.executor import checkpoint
from bfpp.executor.dispatch.backends.distributed import DistributedBackend
from bfpp.executor.dispatch.worker import Worker
from bfpp.executor.events import ended
from bfpp.executor.model.sources import FunctionSource
from bfpp.executor.processes import Message, ProcessContext, RunFailed, launch
from bfpp.executor.run.session import train
from bfpp.executor.settings import BackendName, Saving
from bfpp.executor.train.job import Job
from bfpp.schedules import Communication, Layout, Operation, Task, build_graph, find_schedule
from tests.helpers.run_program import run_for_many, run_here, started_here

STEPS = 20
SOON = 10.0
"""Seconds from a death to the end of the run, on a busy machine."""

LOCAL = ("--backend", "local")
LAYOUT = ("breadth-first", "--pp", 2, "--dp", 2, "--loops", 2, "--microbatches", 4)
OPTIONS = (*LAYOUT, "--sharding", "full", "--precision", "float64", "--steps", STEPS)
NAMED = r"(rank (?P<rank>\d)(, replica (?P<replica>\d))? \(process \d\)|process (?P<process>\d))"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], Path]:
    """The losses of a run that nothing happens to, and what it saved; its ranks share a process."""
    saved = tmp_path_factory.mktemp("undisturbed") / "saved"
    record = record_of(*LOCAL, "--checkpoint", saved)
    return [float(loss) for loss in record["losses"]], saved


def record_of(*options: object) -> dict[str, Any]:
    """The output of a run from here that ends well."""
    with started_here():
        ended = run_for_many(*OPTIONS, *options, "--json")
    assert ended.code == 0, ended.errors
    return dict(json.loads(ended.output))


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))


# A kill at a random moment


def kill_at_random(
    process: subprocess.Popen[str], directory: Path, chance: random.Random
) -> tuple[int, dict[int, int]]:
    """Which rank was killed, while it started or once some checkpoints were there."""
    wait_for(lambda: len(ranks_of(process)) == 4)
    pids = ranks_of(process)
    if chance.random() < 0.25:
        time.sleep(chance.uniform(0, 6))
    else:
        due = chance.randrange(1, STEPS - 8)
        wait_for(lambda: (last := checkpoint.latest(directory)) and step_of(last) >= due, 180)
        time.sleep(chance.uniform(0, 0.2))
    rank = chance.randrange(4)
    assert alive([process.pid]), "the run was too short"
    os.kill(pids[rank], signal.SIGKILL)
    return rank, pids


def some_fast(seeds: range, fast: int) -> list[object]:
    slow = [pytest.param(seed, marks=pytest.mark.slow) for seed in seeds[fast:]]
    return [*seeds[:fast], *slow]


@pytest.mark.parametrize("seed", some_fast(range(20), 1))
def test_a_killed_rank_is_named_and_nothing_is_lost(
    seed: int, tmp_path: Path, undisturbed: tuple[list[float], Path]
) -> None:
    saved = tmp_path / "saved"
    saving = ("--checkpoint", saved, "--save-every", 1)
    with program(*OPTIONS, *saving) as process:
        killed, pids = kill_at_random(process, saved, random.Random(seed))
        since = time.monotonic()
        _, errors = process.communicate(timeout=60)
        seconds = time.monotonic() - since
    assert process.returncode == 1
    assert seconds < SOON
    assert alive(list(pids.values())) == []
    message = unlogged(errors)[0]
    named = re.match(rf"bfpp run: {NAMED} was killed by SIGKILL[, ]", message)
    assert named, errors
    if named["process"] is None:
        assert 2 * int(named["rank"]) + int(named["replica"]) == killed
        assert re.search(r"last seen (in|after|before)", message)
    else:
        assert int(named["process"]) == killed
    last = checkpoint.latest(saved)
    first = step_of(last) if last else 0
    print(f"seed {seed}: resumes at {first}, {seconds:.1f} s: {message}")  # noqa: T201
    same_ranks = () if seed % 2 else LOCAL
    after = record_of(*saving, "--resume", *same_ranks)
    assert after["first_step"] == first
    assert after["losses"] == undisturbed[0][first:]


@pytest.mark.slow
def test_a_killed_tensor_parallel_rank_is_named_and_the_run_goes_on_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved"
    words = ("1f1b", "--pp", 1, "--microbatches", 2, "--layers", 2, "--precision", "float64")
    saving = ("--checkpoint", saved, "--save-every", 1)
    with program(*words, "--tp", 2, "--steps", 10_000, *saving) as process:
        wait_for(lambda: checkpoint.latest(saved) is not None)
        pids = ranks_of(process)
        os.kill(pids[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert alive(list(pids.values())) == []
    assert re.match(
        r"bfpp run: rank 0, tp 1 \(process 1\) was killed by SIGKILL, last seen",
        unlogged(errors)[0],
    ), errors
    last = checkpoint.latest(saved)
    assert last
    steps = step_of(last) + 1
    assert run_here(capsys, *words, *LOCAL, "--steps", steps, *saving, "--resume").code == 0


# A layer of the user's that hangs or raises

TWO = ("gpipe", "--pp", 2, "--microbatches", 4)
NAMED_TASK = "in step 2, in #3 forward of stage 1 micro-batch 0 on rank 1"


@pytest.mark.usefixtures("forked_processes")
def test_a_rank_that_hangs_in_a_layer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    model = ("--model", f"{MODELS}:hanging")
    ended = run_here(capsys, *TWO, *model, "--task-timeout", 3)
    assert ended.code == 1
    told, *details = ended.said
    assert re.fullmatch(rf"bfpp run: rank 1 \(process 1\) hangs {NAMED_TASK}, for \d s", told)
    assert details[0].startswith("Stack")
    assert re.search(r"faulty_models.py\W+line \d+ in loop", details[1])
    assert "watchdog" not in ended.errors
    assert details[-1].startswith("The logs of all processes are in ")


@pytest.mark.usefixtures("forked_processes")
def test_a_rank_whose_layer_raises_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    ended = run_here(capsys, *TWO, "--model", f"{MODELS}:raising")
    assert ended.code == 1
    told, *details = ended.said
    failed = f"rank 1 (process 1) failed {NAMED_TASK}: ValueError: the layer broke"
    assert told == f"bfpp run: {failed}"
    assert any('raise ValueError("the layer broke")' in line for line in details)
    done = "bfpp run: done before: steps 0 to 1; loss, first and last: "
    assert any(line.startswith(done) for line in ended.errors.splitlines())
    assert details[-1].startswith("The logs of all processes are in ")


@pytest.mark.slow  # of a smaller program, `test_launch` says so by default
def test_a_rank_that_leaves_is_named_with_its_task(capsys: pytest.CaptureFixture[str]) -> None:
    ended = run_here(capsys, *TWO, "--model", f"{MODELS}:leaving")
    told, *details = ended.said
    assert told == f"bfpp run: rank 1 (process 1) exited with code 0, last seen {NAMED_TASK}"
    assert not any("Warning" in line for line in details)


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.parametrize("backend", [pytest.param("cpu", marks=pytest.mark.slow), "local"])
def test_an_allocation_that_fails_is_one_line(
    backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ("--model", f"{MODELS}:greedy", "--activations", "keep")
    ended = run_here(capsys, *TWO, *model, "--backend", backend, "--pp", 1, "--dp", 2)
    assert ended.code == 1
    assert re.fullmatch(
        r"bfpp run: .*\(process \d\) failed in step \d, in #\d+ forward of stage 0 .*: "
        r"out of memory: tried to allocate 1 EiB; less is needed with --recompute full "
        r"or --sharding full or a smaller --microbatch-size or more ranks \(--pp\)",
        ended.line,
    )


# Two runs in one directory


def test_a_second_run_is_refused_and_the_first_goes_on_until_it_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved"
    saving = ("--checkpoint", saved, "--save-every", 1)
    with program(*TWO, "--steps", 10**6, *saving) as process:
        wait_for(lambda: checkpoint.latest(saved))
        for resume in ("--resume", f"--steps={10**6}"):
            ended = run_here(capsys, *TWO, *saving, "--resume", "--steps", 10**6, resume)
            assert ended.code == 2
            assert re.fullmatch(
                rf"bfpp run: --checkpoint: {saved} is in use: process {process.pid} on \S+ has "
                r"trained into it since .* UTC; one run at a time",
                ended.line,
            )
        before = step_of(checkpoint.latest(saved) or saved)
        wait_for(lambda: step_of(checkpoint.latest(saved) or saved) > before + 1)
        pids = list(ranks_of(process).values())
        assert len(alive(pids)) == 2
        process.kill()
    wait_for(lambda: not alive(pids), SOON)


@pytest.mark.usefixtures("forked_processes")
def test_a_run_that_comes_second_by_a_moment_is_refused_too(tmp_path: Path) -> None:
    job = replace(JOB, backend=BackendName.LOCAL, saving=Saving(tmp_path, 1))
    with checkpoint.locked(tmp_path, 4711), pytest.raises(RunFailed) as failure:
        launch(train, job, 1)
    assert str(failure.value).startswith(
        f"process 0 failed in opening {tmp_path}: {tmp_path} is in use: process 4711 on "
    )
    assert failure.value.details == ""


# A directory that cannot be saved to


def test_what_cannot_be_saved_is_known_before_a_process_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bfpp.executor.processes.launcher.children.start_processes", None)
    (tmp_path / "file").touch()
    ended = run_here(capsys, *TWO, "--checkpoint", tmp_path / "file" / "saved")
    assert ended.code == 2
    assert ended.line == f"bfpp run: --checkpoint: {tmp_path}/file/saved: Not a directory"


def test_a_damaged_manifest_is_known_before_a_process_starts(
    tmp_path: Path,
    undisturbed: tuple[list[float], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved = Path(shutil.copytree(undisturbed[1], tmp_path / "saved"))
    manifest = (checkpoint.latest(saved) or saved) / "manifest.json"
    manifest.write_text(manifest.read_text()[:-9])
    monkeypatch.setattr("bfpp.executor.processes.launcher.children.start_processes", None)
    ended = run_here(capsys, *OPTIONS, "--checkpoint", saved, "--resume")
    assert ended.code == 2
    assert ended.line.startswith(f"bfpp run: --resume: {manifest}: damaged, or no manifest")


def on_a_small_disk(context: ProcessContext, job: Job) -> None:
    shutil.disk_usage = lambda _: _Usage(10**9, 10**9, 1000)  # type: ignore[assignment]
    train(context, job)


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.mark.usefixtures("forked_processes")
def test_too_little_space_is_known_before_the_first_step(tmp_path: Path) -> None:
    messages: list[Message] = []
    job = replace(JOB, backend=BackendName.LOCAL, saving=Saving(tmp_path, 1))
    with pytest.raises(RunFailed) as failure:
        launch(on_a_small_disk, job, 1, on_message=messages.append)
    assert re.search(
        rf"{tmp_path}: a checkpoint takes 3\.\d+ kB, and 1 kB are free$", str(failure.value)
    )
    assert [message["event"] for message in messages] == ["end"]


# Processes that do not do the same

JOB = Job(
    find_schedule("gpipe"),
    Layout(2, 4),
    Communication(),
    FunctionSource(MODELS, "regression"),
    3,
)


def swapping(context: ProcessContext, job: Job) -> None:
    """An entry whose first rank sends its second message before its first."""
    transfer, held = DistributedBackend.transfer, list[Task]()

    def swapped(self: DistributedBackend, task: Task, workers: Sequence[Worker]) -> None:
        if self.worker.rank == task.rank == 0 and task.microbatch == 0:
            held.append(task)
            return
        transfer(self, task, workers)
        if held:
            transfer(self, held.pop(), workers)

    DistributedBackend.transfer = swapped  # type: ignore[method-assign]
    train(context, job)


def is_swapped(task: Task) -> bool:
    return task.operation is Operation.TRANSFER_ACTIVATIONS and task.microbatch < 2


@pytest.mark.usefixtures("forked_processes")
def test_messages_in_the_wrong_order_are_told_by_name() -> None:
    with pytest.raises(RunFailed) as failure:
        launch(swapping, replace(JOB, checks_messages=True), 2)
    tasks = build_graph(JOB.schedule, JOB.layout, JOB.communication).tasks()
    first, second = (task for task in tasks if is_swapped(task))
    assert str(failure.value) == (
        f"rank 1 (process 1) failed in step 0, in {first}: "
        f"{first} was due, with {WIDTH} elements; process 0 sent {second}, with {WIDTH}"
    )
    assert failure.value.details == ""


def disagreeing(context: ProcessContext, job: Job) -> None:
    """An entry whose second process was told something else."""
    train(context, replace(job, **OTHER) if context.process == 1 else job)


OTHER: dict[str, Any] = {"schedule": "1f1b"}


@pytest.mark.usefixtures("forked_processes")
def test_different_graphs_end_before_the_first_step() -> None:
    messages: list[Message] = []
    with pytest.raises(RunFailed) as failure:
        launch(disagreeing, JOB, 2, on_message=messages.append)
    assert messages == [ended("failed", str(failure.value))]
    assert str(failure.value) == (
        "process 0 failed: process 1 has another task graph, model, text or setting than process 0"
    )
    assert failure.value.details == ""

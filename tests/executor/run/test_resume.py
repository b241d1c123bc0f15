"""Training that goes on from a checkpoint: as if it had never stopped, however the model is cut."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.helpers.faulty_models import WIDTH, regression
from benchmarks.helpers.programs import MODELS, Ended
from bfpp.executor import checkpoint
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import Activations, DType, Optimization
from bfpp.executor.train.reference import train_plainly
from tests.helpers.nursery import forked
from tests.helpers.run_program import run_for_many, run_here, started_here
from tests.helpers.strategies import Configuration, configurations
from tests.helpers.training_runs import same, training

SOME = settings(max_examples=15)
CLOSE = 1e-10
NORM = 0.1


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Configuration, int]:
    """A schedule with all that goes with it, and the number of replicas: two groups in HSDP."""
    configuration = draw(configurations(ranks=3, parts=2, cells=6))
    return configuration, groups_of(configuration) * draw(st.integers(1, 2))


def groups_of(configuration: Configuration) -> int:
    return 2 if configuration.communication.hybrid else 1


def plan_of(
    drawn: tuple[Configuration, int],
    microbatch_size: int = 2,
    precision: DType = DType.FLOAT64,
    activations: Activations = Activations.RECOMPUTE,
    clip: float | None = None,
) -> Plan:
    configuration, replicas = drawn
    is_clipped = configuration.communication.clipping
    return Plan(
        configuration.graph(),
        regression(0),
        dp=replicas,
        dp_replicate=groups_of(configuration),
        microbatch_size=microbatch_size,
        precision=precision,
        activations=activations,
        optimization=Optimization(clip=(clip or NORM) if is_clipped else None),
    )


@contextmanager
def folder() -> Iterator[Path]:
    """A directory of an example's own."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@SOME
@given(layouts(), st.sampled_from(DType), st.sampled_from(Activations))
def test_a_resumed_run_is_the_same_to_the_last_bit(
    drawn: tuple[Configuration, int], precision: DType, activations: Activations
) -> None:
    plan = plan_of(drawn, 2, precision, activations)
    with folder() as directory:
        with training(plan) as straight:
            losses = straight.run(range(6))
            expected = straight.values()
        with training(plan) as before:
            assert before.run(range(3)) == losses[:3]
            saved = before.save(directory, 3)
        with training(plan) as after:
            after.load(saved)
            assert after.run(range(3, 6)) == losses[3:]
            assert same(after.values(), expected)


@SOME
@given(layouts(), layouts(), st.sampled_from(Activations))
def test_a_checkpoint_goes_on_in_any_other_layout(
    one: tuple[Configuration, int], other: tuple[Configuration, int], activations: Activations
) -> None:
    first = plan_of(one, samples_per_replica(other))
    second = plan_of(other, samples_per_replica(one), activations=activations)
    with folder() as directory, training(first) as before, training(second) as after:
        before.run(range(2))
        after.load(before.save(directory, 2))
        assert same(after.values(), before.values())
        losses = after.run(range(2, 4))
        if first.optimization == second.optimization:
            reference = train_plainly(second, range(4))
            assert losses == pytest.approx(reference.losses[2:], abs=CLOSE)
            values = after.values()
            for name, value in reference.parameters.items():
                assert torch.allclose(values[name], value.flatten(), rtol=0, atol=CLOSE)


def samples_per_replica(drawn: tuple[Configuration, int]) -> int:
    """A micro-batch's size in another layout, so that both have as many samples in a step."""
    configuration, replicas = drawn
    return configuration.layout.microbatches * replicas


# As a command

SCHEDULE = ("breadth-first", "--pp", 2, "--loops", 2, "--microbatches", 4)
LOCAL = ("--backend", "local", "--json")


def saved_values(directory: Path) -> dict[str, torch.Tensor]:
    """All that the last checkpoint holds."""
    last = checkpoint.latest(directory)
    assert last
    stored = checkpoint.read_manifest(last).tensors
    found = {name: torch.empty(each.size, dtype=each.dtype) for name, each in stored.items()}
    pieces = {name: checkpoint.TensorPieces(len(each), [(0, each)]) for name, each in found.items()}
    checkpoint.load(last, pieces, None)
    return found


@pytest.fixture(scope="module")
def three_steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A directory with a checkpoint after three steps, and what the command said."""
    directory = tmp_path_factory.mktemp("three") / "saved"
    saving = ("--checkpoint", directory, "--resume")
    with forked():
        ended = run_for_many(*SCHEDULE, "--steps", 3, *saving, "--json")
    return directory, ended


@pytest.fixture
def copied(three_steps: tuple[Path, Ended], tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be gone on with."""
    return Path(shutil.copytree(three_steps[0], tmp_path / "copied"))


def test_nothing_to_resume_is_a_fresh_start(three_steps: tuple[Path, Ended]) -> None:
    record = three_steps[1].record
    assert record["first_step"] == 0
    assert len(record["losses"]) == 3


def test_a_new_run_does_not_replace_another(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run_here(capsys, *SCHEDULE, "--steps", 6, "--checkpoint", copied)
    assert ended.code == 2
    assert f"--checkpoint: {copied}" in ended.line
    assert "is there already: --resume continues from it" in ended.line


@pytest.mark.usefixtures("one_process")
def test_a_command_goes_on_to_the_last_bit(
    three_steps: tuple[Path, Ended],
    copied: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save = ("--checkpoint", tmp_path / "straight")
    straight = run_here(capsys, *SCHEDULE, "--steps", 6, *save, *LOCAL).record
    after = run_here(
        capsys, *SCHEDULE, "--steps", 6, "--checkpoint", copied, "--resume", "--json", "--verify"
    ).record
    assert three_steps[1].record["losses"] + after["losses"] == straight["losses"]
    assert (after["first_step"], after["exact"]) == (3, True)
    assert same(saved_values(copied), saved_values(tmp_path / "straight"))


@pytest.mark.parametrize("steps", [3, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("one_process")
def test_nothing_left_to_do_ends_well(
    steps: int, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resume = ("--checkpoint", copied, "--resume", "--verify")
    record = run_here(capsys, *SCHEDULE, "--steps", steps, *resume, *LOCAL).record
    assert (record["first_step"], record["losses"]) == (3, [])
    assert record["median_step_time"] is None
    assert record["exact"]
    last = checkpoint.latest(copied)
    assert last
    assert last.name.endswith("-step-3")


@pytest.mark.usefixtures("forked_processes")
def test_a_checkpoint_of_another_model_is_one_clear_line(
    copied: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    resume = ("--checkpoint", copied, "--resume", "--precision", "float64")
    ended = run_here(capsys, *SCHEDULE, *resume, *LOCAL)
    last = checkpoint.latest(copied)
    assert last
    assert ended.code == 1
    assert ended.line == (
        f"bfpp run: the process of all ranks (process 0) failed in loading {last.name}: {last}: "
        f"0.0.bias has {WIDTH} values of torch.float32, but {WIDTH} of torch.float64 in the model"
    )
    assert list(temporary.iterdir()) == []


OTHER_TRAININGS = [
    (("--microbatch-size", 2), "samples in a step 16, not 8"),
    (("--seed", 1), "seed 0, not 1"),
    (("--learning-rate", 0.5), "learning rate 0.001, not 0.5"),
    (("--clip", 1), "clipping to None, not 1.0"),
]


@pytest.mark.parametrize(("options", "reason"), OTHER_TRAININGS)
def test_what_was_trained_otherwise_is_not_verified(
    options: tuple[object, ...], reason: str, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resume = ("--checkpoint", copied, "--resume", "--verify")
    ended = run_here(capsys, *SCHEDULE, *resume, *options, *LOCAL)
    assert ended.code == 2
    assert ended.line == (
        f"bfpp run: --verify: {checkpoint.latest(copied)} was trained with {reason}: "
        "no plain loop would train so"
    )


@pytest.mark.usefixtures("one_process")
def test_what_has_changed_since_the_checkpoint_is_said_and_remembered(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "mine.py"
    model.write_text(MODELS.read_text() + "# of my own\n")
    options = ("--model", f"{model}:regression", "--learning-rate", 0.5, "--seed", 7, "--clip", 2)
    other = (*SCHEDULE, *options, "--microbatch-size", 2, "--checkpoint", copied, "--resume")
    ended = run_here(capsys, *other, "--steps", 4, *LOCAL)
    changes = json.loads(ended.output)["changed"]
    assert ended.said == [f"bfpp run: changed since the checkpoint: {each}" for each in changes]
    *settings, source = changes
    assert settings == [
        "samples in a step from 16 to 8",
        "seed from 0 to 7",
        "learning rate from 0.001 to 0.5",
        "clipping to from None to 2.0",
    ]
    assert re.fullmatch(
        r"the model from regression of faulty_models.py \(\w{12}\) "
        r"to regression of mine.py \(\w{12}\)",
        source,
    )
    ended = run_here(capsys, *other, "--steps", 5, *LOCAL, "--verify")
    assert "was trained with samples in a step 16, not 8" in ended.line


@pytest.fixture(scope="module")
def every_step(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A directory with a checkpoint of each of four steps, and what the command said."""
    directory = tmp_path_factory.mktemp("four") / "saved"
    saving = ("--checkpoint", directory, "--resume", "--save-every", 1, "--keep", 9)
    metrics = ("--metrics", directory.with_name("metrics"), "--log-every", 3)
    with started_here():
        return directory, run_for_many(*SCHEDULE, "--steps", 4, *saving, *metrics, *LOCAL[:2])


def test_it_is_said_where_a_run_begins(every_step: tuple[Path, Ended]) -> None:
    directory, ended = every_step
    first, *steps = ended.errors.splitlines()
    assert first == f"no checkpoint in {directory} yet: starting at step 0"
    assert [int(line.split()[1]) for line in steps] == [0, 3]


@pytest.mark.usefixtures("one_process")
def test_an_earlier_checkpoint_than_the_last(
    every_step: tuple[Path, Ended], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "saved"
    shutil.copytree(every_step[0], directory)
    metrics = shutil.copy(every_step[0].with_name("metrics"), tmp_path / "metrics")
    options = ("--keep", 2, "--keep-every", 2, "--save-every", 3, "--metrics", metrics)
    saving = ("--checkpoint", directory, "--steps", 7, *options)
    ended = run_here(capsys, *SCHEDULE, *saving, "--resume", 2, *LOCAL)
    record = json.loads(ended.output)
    (warning,) = ended.said
    assert warning == (
        "bfpp run: the later checkpoints of steps 3, 4 stay until this run has written one, "
        "and go then"
    )
    assert (record["first_step"], record["changed"]) == (2, [])
    assert record["resumed_from"] == str(directory / "save-000002-step-2")
    assert record["saved"] == str(directory / "save-000007-step-7")
    steps = [int(each.name.rpartition("-")[2]) for each in checkpoint.complete(directory)]
    assert steps == [2, 6, 7], "of step 2 as it is even, and the last two; no more of the others"
    lines = [json.loads(line) for line in Path(metrics).read_text().splitlines()]
    told = [(line["run"], line["step"], line["loss"]) for line in lines if line["event"] == "step"]
    assert [step for _, step, _ in told] == [0, 1, 2, 3, 2, 3, 4, 5, 6]
    assert [loss for _, _, loss in told[2:4]] == [loss for _, _, loss in told[4:6]]
    assert len({run for run, _, _ in told}) == 2


def test_a_step_that_is_not_there(
    every_step: tuple[Path, Ended], capsys: pytest.CaptureFixture[str]
) -> None:
    saving = ("--checkpoint", every_step[0], "--resume=7")
    ended = run_here(capsys, *SCHEDULE, *saving, *LOCAL)
    assert ended.code == 2
    assert ended.line == (
        f"bfpp run: --resume: {every_step[0]} has no checkpoint of step 7, but of 1, 2, 3 and 4"
    )


def test_the_schedule_may_follow_what_has_no_value(
    every_step: tuple[Path, Ended], capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run_here(capsys, "--checkpoint", every_step[0], "--resume", *SCHEDULE, "--tp", 2)
    assert ended.line == "bfpp run: --tp: divides the loss of the built-in transformer alone"

"""A loader with state: its batches are the same in every process, and go on with a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.helpers.programs import run
from bfpp.executor import checkpoint
from bfpp.executor.checkpoint.manifest import read_manifest
from bfpp.executor.run.resume import LOADER, Begun, loader_state, restore_loader
from tests.helpers import stateful_loader
from tests.helpers.run_program import run_here
from tests.helpers.stateful_loader import Shuffled, stateful, stateless

pytestmark = pytest.mark.usefixtures("one_thread")

LOADERS = stateful_loader.__file__
ANY = ["gpipe", "--pp", 2, "--microbatch-size", 2, "--precision", "float64", "--json"]
LOCAL = [*ANY, "--backend", "local", "--model", f"{LOADERS}:stateful"]
LAYOUT, OTHER = ["--dp", 2, "--microbatches", 2], ["--dp", 1, "--microbatches", 4]
STEPS, CUT = 8, 3
"""An epoch has 5 batches."""


def test_any_step_can_be_asked_for_again() -> None:
    loader, plain = stateful(0).batch, Shuffled()
    due = [each for _ in range(3) for each in plain]
    for step in (0, 1, 0, 2, 7, 6, 14, 1, 0, 13):
        for value, expected in zip(loader(step, range(2, 5)), due[step], strict=True):
            assert torch.equal(value, expected[2:5])


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("threads", [[], ["--loader-threads", 2]], ids=["at once", "ahead"])
@pytest.mark.parametrize("later", [LAYOUT, OTHER], ids=["same layout", "another"])
def test_a_resumed_run_goes_on_with_the_next_batch(
    later: list[object], threads: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*LOCAL, *threads]
    whole = run_here(capsys, *words, *LAYOUT, "--steps", STEPS, "--verify").record
    assert whole["max_weight_error"] < 1e-10
    assert len(set(whole["losses"])) == STEPS
    saving = ["--checkpoint", tmp_path / "saved"]
    begun = run_here(capsys, *words, *LAYOUT, "--steps", CUT, *saving).record
    (path,) = checkpoint.complete(tmp_path / "saved")
    assert LOADER in read_manifest(path).settings
    rest = run_here(capsys, *words, *later, "--steps", STEPS, *saving, "--resume").record
    assert begun["losses"] == whole["losses"][:CUT]
    if later is LAYOUT:
        assert rest["losses"] == whole["losses"][CUT:]
    assert rest["losses"] == pytest.approx(whole["losses"][CUT:], rel=1e-12)


@pytest.mark.slow
def test_so_does_one_in_processes(tmp_path: Path) -> None:
    words = [*ANY, "--backend", "cpu", "--model", f"{LOADERS}:stateful", *LAYOUT]
    whole = run(*words, "--steps", STEPS).record["losses"]
    saving = ["--checkpoint", tmp_path / "saved"]
    begun = run(*words, "--steps", CUT, *saving).record["losses"]
    rest = run(*words, "--steps", STEPS, *saving, "--resume").record["losses"]
    assert begun + rest == whole


@pytest.mark.usefixtures("one_process")
def test_batches_of_another_size_are_refused_in_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = run_here(capsys, *LOCAL, "--dp", 3, "--microbatches", 2, "--steps", 1).line
    assert line.endswith("its loader gives batches of 8 samples, and a step has 12")


def test_a_checkpoint_of_the_other_kind_is_refused() -> None:
    path, model, other = Path("saved"), stateful(0), stateless(0)
    with_state = Begun(0, loader_state(model, 0), path)
    assert loader_state(other, 0) == {}
    for each, begun, told in (
        (other, with_state, "saved: has the state of a loader, and the model has none"),
        (model, Begun(0, {}, path), "saved: has no state of a loader, and the model has one"),
    ):
        with pytest.raises(checkpoint.CheckpointError, match=told):
            restore_loader(each, begun)
    restore_loader(model, with_state)
    restore_loader(other, Begun(0, {}, path))

"""Checkpoints that are written in the background: what they hold, and how they fail."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bfpp.executor import checkpoint
from bfpp.executor.checkpoint import CheckpointError
from bfpp.executor.plan.plan import Plan
from bfpp.executor.run.resume import Begun
from bfpp.executor.run.saver import Saver
from bfpp.executor.settings import BackendName, DType, Optimization, Saving
from bfpp.schedules import Communication, Layout, Sharding, build_graph
from tests.executor.run.test_resume import saved_values
from tests.helpers.run_program import run_here
from tests.helpers.small_models import chain
from tests.helpers.training_runs import Training, same, training

pytestmark = pytest.mark.usefixtures("one_thread")


def plan_of() -> Plan:
    graph = build_graph("breadth-first", Layout(2, 2, 2), Communication(Sharding.FULL))
    return Plan(graph, chain(4), dp=2, precision=DType.FLOAT64, optimization=Optimization(1e-2))


def saver_of(found: Training, directory: Path, **others: Any) -> Saver:
    saving = Saving(directory, every=1, in_background=True, **others)
    job: Any = SimpleNamespace(saving=saving, backend=BackendName.LOCAL)
    watch = SimpleNamespace(during=lambda _: nullcontext())
    place: Any = SimpleNamespace(watch=watch, limits=SimpleNamespace(hang=1.0))
    return Saver(job, place, found.backend, Begun())


class Held:
    """Saves that wait until they may go on."""

    def __init__(self) -> None:
        self.save, self.may_go_on = checkpoint.save, threading.Event()

    def __call__(self, *arguments: Any) -> Path:
        assert self.may_go_on.wait(60)
        return self.save(*arguments)


def test_a_save_holds_the_state_that_was_while_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "save", held := Held(), raising=False)
    with training(plan_of()) as found:
        saver = saver_of(found, tmp_path)
        found.run(range(2))
        expected = found.values()
        saver.save(2, {})
        assert saver.news() == []
        found.run(range(2, 4))
        assert not same(found.values(), expected)
        held.may_go_on.set()
        saver.finish()
        (saved,) = saver.news()
        assert (saved.step, saved.path) == (2, checkpoint.latest(tmp_path))
        assert saver.news() == []
        found.load(saved.path)
        assert same(found.values(), expected)


def test_one_save_waits_for_another_and_old_ones_go(tmp_path: Path) -> None:
    with training(plan_of()) as found:
        saver = saver_of(found, tmp_path, keep=1)
        for step in range(3):
            found.run(range(step, step + 1))
            saver.save(step + 1, {})
        saver.finish()
        assert [each.step for each in saver.news()] == [1, 2, 3]
    assert [path.name for path in checkpoint.complete(tmp_path)] == ["save-000003-step-3"]


def test_nothing_is_imported_while_others_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's modules that import one another come half loaded where two threads import them."""
    threads = []

    def loaded(name: str) -> Any:
        threads.append(threading.current_thread())
        return load(name)

    load = checkpoint.__getattr__
    monkeypatch.setattr(checkpoint, "__getattr__", loaded)
    with training(plan_of()) as found:
        saver = saver_of(found, tmp_path)
        saver.save(0, {})
        saver.finish()
    assert {*threads} == {threading.main_thread()}


def test_a_save_that_fails_is_told_of_by_the_next_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Path:
        raise CheckpointError("no room")

    monkeypatch.setattr(checkpoint, "save", fail, raising=False)
    with training(plan_of()) as found:
        saver = saver_of(found, tmp_path)
        saver.save(1, {})
        assert saver.under_way is not None
        assert saver.under_way.exception()
        with pytest.raises(CheckpointError, match="no room"):
            saver.news()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["local", "cpu"])
def test_the_command_saves_in_the_background_what_it_saves_at_once(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("1f1b", "--pp", 2, "--microbatches", 4, "--backend", backend, "--save-every", 2)
    values = []
    for name, options in {"at once": (), "later": ("--async-save",)}.items():
        saving = ("--checkpoint", tmp_path / name, *options, "--json")
        assert run_here(capsys, *words, "--steps", 4, *saving).record["saved"]
        run_here(capsys, *words, "--steps", 7, "--resume", *saving)
        values.append(saved_values(tmp_path / name))
    assert same(*values)
    assert all(torch.isfinite(each).all() for each in values[0].values())

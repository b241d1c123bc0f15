"""Tokens in a mapped file, and batches that are loaded ahead: always the same."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bfpp.executor.model.transformer.corpus import Text, read_text
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import DType, Optimization
from bfpp.schedules import Communication, InvalidConfiguration, Layout, Sharding, build_graph
from tests.helpers.small_models import chain
from tests.helpers.training_runs import run_locally, training

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32])
def test_tokens_are_mapped_and_not_read(kind: type[np.integer], tmp_path: Path) -> None:
    tokens = np.arange(100, dtype=kind)
    np.save(tmp_path / "tokens.npy", tokens)
    found = read_text(tmp_path / "tokens.npy")
    assert isinstance(found, np.memmap)
    mapped, plain = Text(found, 8, seed=3), Text(bytes(range(100)), 8, seed=3)
    for one, other in zip(
        mapped.next_bytes(5, range(2, 6)), plain.next_bytes(5, range(2, 6)), strict=True
    ):
        assert torch.equal(one, other)
        assert one.dtype is torch.int64


@pytest.mark.parametrize("wrong", [np.zeros(9), np.zeros((3, 3), dtype=int), np.array(["a"])])
def test_what_is_no_array_of_tokens_is_refused(wrong: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "wrong.npy", wrong)
    with pytest.raises(InvalidConfiguration, match=r"text: .*wrong.npy is an array of"):
        read_text(tmp_path / "wrong.npy")
    (tmp_path / "broken.npy").write_bytes(b"no array")
    with pytest.raises(InvalidConfiguration, match=r"text: .*broken.npy"):
        read_text(tmp_path / "broken.npy")


class Seen:
    """A batch that remembers who asked for which step."""

    def __init__(self, plan: Plan) -> None:
        self.batch = plan.model.batch
        self.asked: list[tuple[int, str]] = []

    def __call__(self, step: int, samples: range) -> tuple[Tensor, Tensor]:
        self.asked.append((step, threading.current_thread().name))
        return self.batch(step, samples)


@pytest.mark.parametrize("sharding", [Sharding.NONE, Sharding.FULL])
def test_batches_that_are_loaded_ahead_are_the_same(sharding: Sharding) -> None:
    plan = Plan(
        build_graph("breadth-first", Layout(2, 2, 2), Communication(sharding)),
        chain(4),
        dp=2,
        microbatch_size=2,
        precision=DType.FLOAT64,
        optimization=Optimization(1e-2),
        loader_threads=2,
    )
    seen = Seen(plan)
    watched = replace(plan, model=replace(plan.model, batch=seen))
    _ = watched.traced
    seen.asked.clear()
    with training(watched) as run:
        for worker in run.backend.workers:
            worker.loader.last = 6
        losses = run.run(range(4, 7))
    assert {step for step, name in seen.asked if not name.startswith("loader")} == {4}
    assert {step for step, name in seen.asked if name.startswith("loader")} == {5, 6}
    later, _ = run_locally(replace(plan, loader_threads=0), range(4, 7))
    assert losses == [each.loss for each in later]

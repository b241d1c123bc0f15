"""The same training on CUDA streams: nothing is read or reused too soon."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from random import Random

import pytest
import torch

from benchmarks.faulty_models import regression
from benchmarks.measure import ROOT
from benchmarks.programs import run
from bfpp.executor.lanes import Action, StreamLane, Streams
from bfpp.executor.measured import END, START
from bfpp.executor.plan import Plan
from bfpp.executor.reference import train_plainly
from bfpp.executor.settings import Activations, Optimization, Precision
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Sharding,
    find_schedule,
    registered_schedules,
)
from tests.strategies import some_configuration
from tests.training_runs import training

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CLOSE = 1e-10
STEPS = 5
"""More than may be under way at once."""

MOST_CYCLES = 1_000_000
"""Half a millisecond, about."""


def plan_of(schedule: str, sharding: Sharding, activations: Activations, clip: bool) -> Plan:
    communication = Communication(sharding, True, True, clip)
    try:
        graph = some_configuration(find_schedule(schedule), 2, communication).graph()
    except InvalidConfiguration as error:
        pytest.skip(str(error))
    return Plan(
        graph,
        regression(0),
        dp=2,
        microbatch_size=2,
        precision=Precision.FLOAT64,
        activations=activations,
        optimization=Optimization(clip=0.1 if clip else None),
    )


class Delayed(Streams):
    """Streams on which each action begins late, so that a wait that is missing is seen."""

    def lane(self, name: str) -> StreamLane:
        return DelayedLane(self, name)


class DelayedLane(StreamLane):
    def __init__(self, device: Streams, name: str) -> None:
        super().__init__(device)
        self.chance = Random(name)

    def run(self, action: Action) -> None:
        def late() -> None:
            torch.cuda._sleep(self.chance.randrange(MOST_CYCLES))
            action()

        super().run(late)


CASES = list(product(registered_schedules(), Sharding, Activations, (False, True)))


@pytest.mark.parametrize("kind", [Streams, Delayed])
@pytest.mark.parametrize(("schedule", "sharding", "activations", "clip"), CASES)
def test_streams_compute_what_a_plain_loop_does(
    schedule: str, sharding: Sharding, activations: Activations, clip: bool, kind: type[Streams]
) -> None:
    plan = plan_of(schedule, sharding, activations, clip)
    reference = train_plainly(plan, range(STEPS))
    with training(plan, kind(torch.device("cuda", 0))) as found:
        losses = found.run(range(STEPS))
        assert losses == pytest.approx(reference.losses, abs=CLOSE)
        values = found.values()
        for name, value in reference.parameters.items():
            assert torch.allclose(values[name], value.flatten(), rtol=0, atol=CLOSE)
        columns = found.trainer.columns_of_median()
        assert columns is not None
        assert bool((columns[:, END] >= columns[:, START]).all())


WATCHED = [
    "breadth-first-full-keep-True",
    "breadth-first-none-recompute-False",
    "1f1b-full-recompute-True",
    "zb-h2-full-keep-True",
]
"""A few cases: under the sanitizer, each takes long."""


def test_the_sanitizer_finds_no_race() -> None:
    streams = f"{__file__}::{test_streams_compute_what_a_plain_loop_does.__name__}"
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(f"{streams}[{each}-Streams]" for each in WATCHED)],
        cwd=ROOT,
        env={**os.environ, "TORCH_CUDA_SANITIZER": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("sharding", list(Sharding))
def test_a_process_for_each_gpu(sharding: Sharding) -> None:
    gpus = torch.cuda.device_count()
    size = ("--pp", 2, "--dp", gpus // 2, "--loops", 2, "--microbatches", 4, "--steps", STEPS)
    how = ("--sharding", sharding, "--precision", "float64", "--clip", 0.1, "--check-messages")
    ended = run("breadth-first", *size, *how, "--backend", "cuda", "--verify", "--json")
    assert ended.record["exact"] is True

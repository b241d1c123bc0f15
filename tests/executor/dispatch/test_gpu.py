"""The same training on CUDA streams: nothing is read or reused too soon."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.helpers.faulty_models import regression
from benchmarks.helpers.programs import run
from bfpp.executor.devices.lanes import URGENT, USUAL, Action, StreamLane, Streams
from bfpp.executor.dispatch.cuda_graphs import WARM_UP
from bfpp.executor.dispatch.dispatch import Step
from bfpp.executor.measure.passes import CalibrationWork, Effort, calibrate
from bfpp.executor.model.sources import TransformerSource
from bfpp.executor.model.transformer.transformer import TransformerSizes
from bfpp.executor.plan.plan import Plan
from bfpp.executor.processes import launch
from bfpp.executor.settings import (
    Activations,
    BackendName,
    DType,
    HeldOutEvaluation,
    LearningRates,
    LossScaling,
    Optimization,
)
from bfpp.executor.train.job import Job
from bfpp.executor.train.measured_timeline import END, START
from bfpp.executor.train.reference import train_plainly
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Sharding,
    build_graph,
    find_schedule,
    registered_schedules,
)
from bfpp.schedules.settings.recomputation import NO_RECOMPUTATION, parse_recomputation
from tests.helpers import ROOT
from tests.helpers.small_models import Averaged, chain
from tests.helpers.strategies import some_configuration
from tests.helpers.training_runs import same, training

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CLOSE = 1e-10
STEPS = 5
"""More than may be under way at once."""

MOST_CYCLES = 1_000_000
"""Half a millisecond, about."""


def plan_of(
    schedule: str,
    sharding: Sharding,
    activations: Activations,
    clip: bool,
    offload: int = 0,
    **how: Any,
) -> Plan:
    communication = Communication(sharding, True, True, clip, offload=offload)
    try:
        graph = some_configuration(find_schedule(schedule), 2, communication).graph()
    except InvalidConfiguration as error:
        pytest.skip(str(error))
    return Plan(
        graph,
        regression(0),
        dp=2,
        microbatch_size=2,
        precision=DType.FLOAT64,
        activations=activations,
        optimization=Optimization(clip=0.1 if clip else None),
        **how,
    )


class Delayed(Streams):
    """Streams on which each action begins late, so that a wait that is missing is seen."""

    def lane(self, name: str, is_urgent: bool = False) -> StreamLane:
        return DelayedLane(self, name, URGENT if is_urgent else USUAL)

    def load(self, value: Tensor) -> Tensor:
        with torch.cuda.stream(self.loading):
            torch.cuda._sleep(MOST_CYCLES)
        return super().load(value)


class DelayedLane(StreamLane):
    def __init__(self, device: Streams, name: str, priority: int) -> None:
        super().__init__(device, priority)
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


@pytest.mark.parametrize("kind", [Streams, Delayed])
@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize(("schedule", "sharding", "activations", "clip"), CASES[::3])
def test_what_is_offloaded_trains_as_what_is_kept(
    schedule: str,
    sharding: Sharding,
    activations: Activations,
    clip: bool,
    share: float,
    kind: type[Streams],
) -> None:
    found = []
    for offload in (0, 1):
        plan = plan_of(schedule, sharding, activations, clip, offload, offload_share=share)
        with training(plan, kind(torch.device("cuda", 0))) as run:
            found.append((run.run(range(STEPS)), run.values()))
    (losses, values), (expected, weights) = found
    assert losses == expected
    assert same(values, weights)


def test_what_is_offloaded_takes_less_memory_of_the_device() -> None:
    """With as many steps under way as there may be: memory is not kept until copies are seen."""
    peaks = []
    for offload in (0, 1):
        graph = build_graph(find_schedule("gpipe"), Layout(1, 8), Communication(offload=offload))
        sizes = replace(TINY, hidden=256, mlp=1024, context=256)
        model = TransformerSource(sizes, None).load(0)
        plan = Plan(graph, model, microbatch_size=4, activations=Activations.KEEP)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with training(plan, Streams(torch.device("cuda", 0))) as run:
            run.run(range(STEPS))
        peaks.append(torch.cuda.max_memory_allocated() - before)
    kept, away = peaks
    assert away < 0.6 * kept


def trained(plan: Plan, steps: int = STEPS, **how: Any) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and values; with an evaluation after half of the steps, if the plan has any."""
    with training(plan, Streams(torch.device("cuda", 0)), **how) as found:
        losses = found.run(range(steps // 2))
        if plan.evaluation:
            losses.append(found.trainer.evaluate(1))
        losses += found.run(range(steps // 2, steps))
        return losses, found.values()


def errors(plan: Plan, found: tuple[list[float], dict[str, Tensor]]) -> float:
    """The largest of losses and weights, next to a plain loop."""
    losses, values = found
    reference = train_plainly(plan, range(len(losses)))
    apart = [abs(one - other) for one, other in zip(losses, reference.losses, strict=True)]
    for name, value in reference.parameters.items():
        apart.append(float((values[name] - value.flatten().double()).abs().max()))
    return max(apart)


REPLAYED = WARM_UP + 4


@pytest.mark.parametrize(("schedule", "sharding", "activations", "clip"), CASES)
def test_a_cuda_graph_computes_the_same_to_the_last_bit(
    schedule: str, sharding: Sharding, activations: Activations, clip: bool
) -> None:
    plan = plan_of(schedule, sharding, activations, clip)
    losses, values = trained(plan, REPLAYED, cuda_graphs=True)
    expected = trained(plan, REPLAYED)
    assert losses == expected[0]
    assert same(values, expected[1])


@pytest.mark.parametrize("activations", Activations)
@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_buffers_that_passes_change(activations: Activations, cuda_graphs: bool) -> None:
    plan = plan_of("breadth-first", Sharding.FULL, activations, False)
    plan = replace(plan, model=chain(plan.graph.layout.units, 4, Averaged))
    steps = range(2 * WARM_UP)
    with training(plan, Streams(torch.device("cuda", 0)), cuda_graphs=cuda_graphs) as found:
        losses = found.run(steps)
        values = found.values()
    reference = train_plainly(plan, steps)
    assert losses == pytest.approx(reference.losses, abs=CLOSE)
    for name, value in {**reference.parameters, **reference.buffers}.items():
        assert torch.allclose(values[name], value.flatten().double(), rtol=0, atol=CLOSE)


def test_a_cuda_graph_with_evaluations_and_rates_that_change() -> None:
    graph = some_configuration(find_schedule("1f1b"), 2, Communication(clipping=True))
    model = regression(0)
    plan = Plan(
        graph.graph(),
        replace(model, held_out=model.batch),
        build_graph(*graph, evaluates=True),
        microbatch_size=2,
        precision=DType.FLOAT64,
        evaluation=HeldOutEvaluation(every=1, steps=1),
        optimization=Optimization(
            loss_scaling=LossScaling(), rates=LearningRates("cosine", warmup=2, steps=REPLAYED)
        ),
    )
    for steps in (2 * REPLAYED, REPLAYED):  # it is captured before the evaluation, or after
        losses, values = trained(plan, steps, cuda_graphs=True)
        expected = trained(plan, steps)
        assert losses == expected[0]
        assert same(values, expected[1])


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize(("cuda_graphs", "offload"), [(False, 0), (True, 0), (False, 1)])
def test_the_host_does_not_wait_for_the_device(cuda_graphs: bool, offload: int) -> None:
    plan = plan_of("breadth-first", Sharding.FULL, Activations.KEEP, True, offload)
    with training(plan, Streams(torch.device("cuda", 0)), cuda_graphs=cuda_graphs) as found:
        found.run(range(WARM_UP + 2))
        dispatch = found.trainer.dispatcher.dispatch

        def strictly(step: Step) -> None:
            torch.cuda.set_sync_debug_mode("error")
            dispatch(step)
            torch.cuda.set_sync_debug_mode("default")

        found.trainer.dispatcher.dispatch = strictly  # type: ignore[method-assign]
        try:
            assert len(found.run(range(STEPS))) == STEPS
        finally:
            torch.cuda.set_sync_debug_mode("default")


TINY = TransformerSizes(
    layers=4, hidden=32, heads=2, kv_heads=1, context=16, vocabulary=257, mlp=64, gated=True,
    norm="rms", biases=False, query_biases=False,
)  # fmt: skip


@pytest.mark.filterwarnings("default")  # of torch's own modules
@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("recomputation", ["none", "selective", "full"])
@pytest.mark.parametrize("sharding", [Sharding.NONE, Sharding.FULL])
def test_compiled_layers(sharding: Sharding, recomputation: str, cuda_graphs: bool) -> None:
    full = recomputation == "full"
    plan = Plan(
        build_graph(find_schedule("breadth-first"), Layout(2, 4, 2), Communication(sharding)),
        TransformerSource(TINY, None).load(0),
        microbatch_size=2,
        precision=DType.FLOAT64,
        activations=Activations.RECOMPUTE if full else Activations.KEEP,
        recomputation=NO_RECOMPUTATION if full else parse_recomputation(recomputation),
        compile=True,
    )
    assert errors(plan, trained(plan, WARM_UP + 3, cuda_graphs=cuda_graphs)) < CLOSE


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


def test_layers_measured_in_half_precision() -> None:
    source = TransformerSource(TINY, None)
    job = Job(
        find_schedule("breadth-first"), Layout(1, 1), Communication(), source, 1,
        backend=BackendName.LOCAL, device="cuda", precision=DType.BFLOAT16,
    )  # fmt: skip
    measured = launch(calibrate, CalibrationWork(job, Effort(2, (1_024,), (16, 1_024))), 1)
    assert measured is not None
    assert [layer["count"] for layer in measured["layers"]] == [1, TINY.layers, 1]
    of_passes = [measured["passes"], *measured["layers"]]  # so small that some cost nothing more
    assert sum(each["forward"] for each in of_passes) > 0
    launching = measured["launching"]
    assert launching["shared"] == 1
    assert launching["others"] > 0
    assert launching["forward"]["fixed"] + sum(launching["forward"]["layers"]) > 0

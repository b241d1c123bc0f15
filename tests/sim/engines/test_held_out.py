"""Evaluations: forward passes alone, by the schedule's own order, over held-out batches."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.schedules.object_lowering import lower_to_objects
from benchmarks.schedules.plain_checker import plain_violations
from bfpp.command_line import main
from bfpp.executor.model.model import Model
from bfpp.executor.optimizer.nan_checks import NotFinite
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import Activations, DType, HeldOutEvaluation, Optimization
from bfpp.executor.train.reference import train_plainly
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Operation,
    Sharding,
    TaskGraph,
    build_graph,
    find_schedule,
    registered_schedules,
)
from bfpp.schedules.columns import NONE, Groups
from bfpp.schedules.orders.steps import forward_only
from bfpp.schedules.validity import violations
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import simulate
from tests.helpers.small_models import Tanh, chain, numbers
from tests.helpers.strategies import Configuration, some_configuration
from tests.helpers.training_runs import EXACT, training

pytestmark = pytest.mark.usefixtures("one_thread")

EVERY = [(name, sharding) for name in registered_schedules() for sharding in Sharding]


def configured(name: str, sharding: Sharding, **others: object) -> Configuration:
    communication = Communication(sharding, **others)  # type: ignore[arg-type]
    return some_configuration(find_schedule(name), 4, communication)


def evaluating(given: Configuration) -> TaskGraph:
    return build_graph(*given, evaluates=True)


# The graph


@pytest.mark.parametrize(("name", "sharding"), EVERY)
def test_an_evaluation_is_the_forward_passes_of_the_schedule(name: str, sharding: Sharding) -> None:
    given = configured(name, sharding, clipping=True)
    graph, whole = evaluating(given), given.graph()
    assert not graph.trains
    assert whole.trains
    assert violations(graph) == plain_violations(graph) == []
    is_forward = whole.operation == Operation.FORWARD
    for rank in range(graph.layout.pp):
        own, among = graph.compute_tasks.of(rank), is_forward & (whole.rank == rank)
        assert (graph.unit[own] == whole.unit[among]).all()
        assert (graph.microbatch[own] == whole.microbatch[among]).all()
    kinds = {Operation.FORWARD, Operation.TRANSFER_ACTIVATIONS, Operation.GATHER}
    assert set(graph.operation.tolist()) <= {*map(int, kinds)}


@pytest.mark.parametrize(("name", "sharding"), EVERY)
def test_both_lowerings_make_the_same_evaluation(name: str, sharding: Sharding) -> None:
    schedule, layout, communication = given = configured(name, sharding, clipping=True)
    graph = evaluating(given)
    orders = [*map(forward_only, schedule.orders(layout))]
    told = lower_to_objects([order.tolist() for order in orders], layout, communication)
    for task, own in zip(graph.tasks(), told.tasks, strict=True):
        assert (task.operation, task.rank, task.peer) == (own.operation, own.rank, own.peer)
        assert (task.lane, task.weight_buffer) == (own.lane, own.weight_buffer)
        assert {*task.dependencies} == {each.number for each in own.dependencies}


def test_an_evaluation_takes_its_forward_passes_and_a_bubble() -> None:
    graph = build_graph("gpipe", Layout(4, 8), evaluates=True)
    timeline = simulate(graph, AbstractCosts())
    assert timeline.end.max() == pytest.approx(8 + 3)


def dropped(graph: TaskGraph, chosen: np.ndarray) -> TaskGraph:
    """The graph without some tasks, and without what waits for them."""
    kept = np.flatnonzero(~chosen)
    number = np.full(len(graph), NONE)
    number[kept] = np.arange(len(kept))
    waits = [
        [number[each] for each in graph.dependencies.of(task) if number[each] != NONE]
        for task in kept
    ]
    columns = ("operation", "rank", "peer", "unit", "microbatch", "lane", "peer_lane",
               "weight_buffer", "gradient_buffer", "piece", "block")  # fmt: skip
    start = np.cumsum([0, *map(len, waits)])
    member = np.array([each for group in waits for each in group], dtype=np.int32)
    return replace(
        graph,
        dependencies=Groups(start, member),
        **{name: getattr(graph, name)[kept] for name in columns},
    )


def test_what_is_neither_a_step_nor_an_evaluation_is_wrong() -> None:
    whole = build_graph("1f1b", Layout(2, 2))
    backward = whole.is_compute & (whole.operation != Operation.FORWARD)
    no_passes = {each.rule for each in violations(dropped(whole, backward))}
    assert "optimizer" in no_passes
    last = np.arange(len(whole)) == np.flatnonzero(backward)[-1]
    assert "passes" in {each.rule for each in violations(dropped(whole, last))}
    alone = build_graph("1f1b", Layout(2, 2), evaluates=True)
    first = np.arange(len(alone)) == 0
    (found,) = [each for each in violations(dropped(alone, first)) if each.rule == "passes"]
    assert "once forward and not backward, not 0 times forward" in found.message


# Training with evaluations


def held_out(width: int, step: int, samples: range) -> tuple[Tensor, Tensor]:
    return numbers(width, step + 500, samples)


def dropout(width: int) -> nn.Module:
    return nn.Sequential(Tanh(width), nn.Dropout(0.4))


def evaluated(model: Model) -> Model:
    return replace(model, held_out=partial(held_out, 4))


def plan_of(name: str, sharding: Sharding, ranks: int = 2, **others: object) -> Plan:
    given = some_configuration(find_schedule(name), ranks, Communication(sharding))
    return Plan(
        given.graph(),
        evaluated(chain(given.layout.units + 1, 4, dropout)),
        evaluating(given),
        dp=2,
        microbatch_size=2,
        precision=DType.FLOAT64,
        optimization=Optimization(1e-2),
        evaluation=HeldOutEvaluation(every=2, steps=2),
        **others,  # type: ignore[arg-type]
    )


TRAINED = [
    *(("breadth-first", sharding) for sharding in Sharding),
    ("1f1b", Sharding.NONE),
    ("zb-v", Sharding.PARTIAL),
    ("chimera", Sharding.FULL),
    ("dualpipe", Sharding.PARTIAL),
]


@pytest.mark.parametrize(("name", "sharding"), TRAINED)
def test_losses_of_held_out_batches_are_those_of_a_plain_loop(
    name: str, sharding: Sharding
) -> None:
    plan = plan_of(name, sharding, activations=[*Activations][sharding is Sharding.FULL])
    losses: list[float] = []
    found: dict[int, float] = {}
    with training(plan) as run:
        for steps in (range(2), range(2, 3)):
            losses += run.run(steps)
            found[steps.stop] = run.trainer.evaluate(2)
        assert not any(worker.inputs for worker in run.backend.workers)
    reference = train_plainly(plan, range(3))
    assert losses == pytest.approx(reference.losses, abs=EXACT, rel=0)
    assert found == pytest.approx(reference.evaluations, abs=EXACT, rel=0)


def test_evaluations_of_a_module_that_is_to_evaluate_alone() -> None:
    frozen = nn.Dropout(0.5).eval()
    model = Model([Tanh(4), frozen, Tanh(4), Tanh(4)], chain(1).loss, chain(1).batch)
    layout = Layout(2, 2)
    given = ("gpipe", layout)
    plan = Plan(
        build_graph(*given),
        evaluated(model),
        build_graph(*given, evaluates=True),
        evaluation=HeldOutEvaluation(1),
    )
    with training(plan) as run:
        run.run(range(1))
        run.trainer.evaluate(1)
        run.run(range(1, 2))
        modules = [
            module
            for worker in run.backend.workers
            for unit in worker.units.values()
            for layer in unit.layers.values()
            for module in layer.modules()
        ]
    assert {type(module) for module in modules if not module.training} == {nn.Dropout}


def nowhere(step: int, samples: range) -> tuple[Tensor, Tensor]:
    inputs, targets = held_out(4, step, samples)
    return inputs.fill_(torch.nan), targets


def test_a_loss_of_an_evaluation_that_is_not_finite_ends_the_run() -> None:
    given = ("gpipe", Layout(2, 2))
    model = replace(chain(4), held_out=nowhere)
    graphs = build_graph(*given), build_graph(*given, evaluates=True)
    plan = Plan(graphs[0], model, graphs[1], evaluation=HeldOutEvaluation(1))
    words = "the loss of micro-batch 0 is nan on rank 1.*, in an evaluation"
    with training(plan) as run:
        run.run(range(1))
        with pytest.raises(NotFinite, match=words):
            run.trainer.evaluate(1)
        run.run(range(1, 2))


def test_a_model_without_held_out_batches_is_refused() -> None:
    plan = plan_of("1f1b", Sharding.NONE)
    with pytest.raises(InvalidConfiguration, match="evaluation: the model has no held-out batches"):
        replace(plan, model=chain(4)).check()


def test_processes_that_evaluate_otherwise_have_another_digest() -> None:
    plan = plan_of("1f1b", Sharding.NONE)
    others = [
        replace(plan, evaluation=HeldOutEvaluation(3, 2)),
        replace(plan, model=replace(plan.model, held_out=plan.model.batch)),
    ]
    assert plan.digest not in {each.digest for each in others}


# From the command line


SMALL = (
    "--pp", 2, "--microbatches", 2, "--layers", 2, "--hidden", 8, "--heads", 2, "--context", 8,
    "--backend", "local",
)  # fmt: skip


def run(*arguments: object) -> int:
    return main([*map(str, ("run", "1f1b", *SMALL, *arguments))])


@pytest.mark.usefixtures("one_process")
def test_a_run_tells_and_records_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held, metrics = tmp_path / "held.npy", tmp_path / "metrics.jsonl"
    np.save(held, np.arange(200, dtype=np.uint16))
    evaluation = ("--eval-interval", 2, "--eval-iters", 2, "--evaluate-text", held)
    saving = ("--checkpoint", tmp_path / "saved", "--save-every", 3)
    begun = (*evaluation, *saving, "--precision", "fp64", "--metrics", metrics)
    assert run(*begun, "--steps", 4, "--json") == 0
    first = json.loads(capsys.readouterr().out)["evaluations"]
    assert [each["step"] for each in first] == [2, 4]
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [
        {"step": each["step"], "loss": each["loss"]}
        for each in lines
        if each["event"] == "evaluation"
    ] == first
    assert [each["step"] for each in lines if each["event"] == "save"] == [3, 4]
    assert run(*begun, "--steps", 5, "--resume", "--verify") == 0
    told = capsys.readouterr()
    assert "evaluation after step 4: loss" in told.err
    assert "evaluation, first and last" in told.out
    assert "changed since" not in told.err
    np.save(held, np.arange(100, dtype=np.uint16))
    assert run(*begun, "--steps", 6, "--resume") == 0
    assert "changed since the checkpoint: the held-out text from held.npy (" in (
        capsys.readouterr().err
    )


def test_tokens_that_the_model_does_not_know_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "text.npy", np.arange(200, 400))
    assert run("--text", tmp_path / "text.npy") == 2
    assert "the model's vocabulary is 257" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--evaluate-every", 2), "held-out batches"),
        (("--evaluate-steps", 2), "--evaluate-every: required with"),
        (("--evaluate-every", 2, "--evaluate-text", "nowhere"), "--evaluate-text"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_in_a_line(
    arguments: tuple[object, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    told = capsys.readouterr().err
    assert words in told
    assert len(told.splitlines()) == 1


def test_the_shapes_of_held_out_batches_may_be_others() -> None:
    def wider(step: int, samples: range) -> tuple[Tensor, Tensor]:
        inputs, targets = numbers(4, step, samples)
        return torch.stack([inputs] * 3, dim=1), torch.stack([targets] * 3, dim=1)

    plan = plan_of("breadth-first", Sharding.FULL)
    wide = replace(plan, model=replace(plan.model, held_out=wider))
    wide.check()
    with training(wide) as run:
        run.run(range(1))
        loss = run.trainer.evaluate(2)
    assert loss == pytest.approx(train_plainly(wide, range(1)).evaluations[1], abs=EXACT, rel=0)

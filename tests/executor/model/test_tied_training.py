"""Tied embeddings trained: each end has a copy, and both are updated as in a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bfpp.executor.model.model import Model
from bfpp.executor.model.transformer.corpus import Text
from bfpp.executor.model.transformer.transformer import TransformerSizes, transformer
from bfpp.executor.plan.plan import Plan
from bfpp.executor.run.state import pieces_of
from bfpp.executor.settings import Activations, DType, LossScaling, Optimization
from bfpp.executor.train.reference import train_plainly
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Sharding,
    TaskGraph,
    build_graph,
    find_schedule,
    registered_schedules,
)
from tests.helpers.small_models import Scores, Tanh, mean_square, numbers, tied_chain
from tests.helpers.strategies import some_configuration
from tests.helpers.training_runs import (
    EXACT,
    compare,
    errors_of,
    run_locally,
    same,
    training,
    weight_error,
)

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 4


def plan_of(graph: TaskGraph, model: Model | None = None, **settings: object) -> Plan:
    clip = 0.05 if graph.communication.clipping else None
    hybrid = graph.communication.hybrid
    given = {
        "dp": 4 if hybrid else 2,
        "dp_replicate": 2 if hybrid else 1,
        "precision": DType.FLOAT64,
        "optimization": Optimization(1e-2, weight_decay=0.1, clip=clip),
        **settings,
    }
    units = graph.layout.units
    return Plan(graph, model or tied_chain(max(units + 1, 3)), **given)  # type: ignore[arg-type]


def tied(schedule: str, layout: Layout, sharding: Sharding, **more: object) -> TaskGraph:
    communication = Communication(sharding, tied_embeddings=True, **more)  # type: ignore[arg-type]
    return build_graph(schedule, layout, communication)


def test_each_schedule_and_sharding_is_exact() -> None:
    """Every registered schedule, shardings in turn, with and without overlap, both activations."""
    for number, name in enumerate(registered_schedules()):
        sharding = [*Sharding][number % 3]
        overlaps, activations = bool(number & 1), [*Activations][number & 1]
        communication = Communication(
            sharding, overlaps, overlaps, clipping=bool(number & 2), tied_embeddings=True
        )
        if find_schedule(name).slices > 1:
            continue
        graph = some_configuration(find_schedule(name), 2, communication).graph()
        assert errors_of(plan_of(graph, activations=activations)).worst < EXACT, name


@pytest.mark.slow
@pytest.mark.parametrize("clipping", [False, True])
@pytest.mark.parametrize("sharding", Sharding)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", registered_schedules())
def test_all_of_them_are_exact(name: str, ranks: int, sharding: Sharding, clipping: bool) -> None:
    if find_schedule(name).slices > 1:
        pytest.skip("slices cannot be trained")
    communication = Communication(sharding, clipping=clipping, tied_embeddings=True)
    graph = some_configuration(find_schedule(name), ranks, communication).graph()
    assert errors_of(plan_of(graph)).worst < EXACT


@pytest.mark.parametrize("sharding", [Sharding.PARTIAL, Sharding.FULL])
def test_groups_of_replicas_are_exact(sharding: Sharding) -> None:
    graph = tied("breadth-first", Layout(2, 4, 2), sharding, hybrid=True, clipping=True)
    assert errors_of(plan_of(graph)).worst < EXACT


@pytest.mark.parametrize("sharding", Sharding)
def test_both_copies_are_the_same_to_the_last_bit(sharding: Sharding) -> None:
    """In low precision, too, with gradients sent in less than they are added up in."""
    graph = tied("1f1b", Layout(2, 4), sharding, clipping=True)
    settings = {"precision": DType.BFLOAT16, "reduce_precision": DType.BFLOAT16}
    plan = plan_of(graph, **settings)
    with training(plan) as run:
        run.run(range(3))
        first, last = (
            [unit.tied for worker in run.backend.workers for unit in worker.units.values()
             if unit.tied and unit.number == number]
            for number in (0, graph.layout.units - 1)
        )  # fmt: skip
        assert len(first) == len(last) == 2
        for one, other in zip(first, last, strict=True):
            assert torch.equal(one.weights, other.weights)
        assert run.values()


def test_copies_left_to_themselves_drift_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of the tests above if nothing added the gradients up."""
    from bfpp.executor.dispatch.backends.local import LocalBackend

    monkeypatch.setattr(LocalBackend, "tied_all_reduce", lambda *_: None)
    plan = plan_of(tied("1f1b", Layout(2, 4), Sharding.FULL))
    reports, state = run_locally(plan)
    assert compare(plan, [each.loss for each in reports], state).worst > 1e-4


def test_steps_that_are_skipped_are_those_of_a_plain_loop() -> None:
    """With a scaled loss, in a step whose loss is too large."""

    def batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
        inputs, targets = numbers(WIDTH, step, samples)
        return inputs, targets * (1e300 if step == 1 else 1)

    optimization = Optimization(1e-2, clip=0.05, loss_scaling=LossScaling(2.0**8))
    graph = tied("1f1b", Layout(2, 4), Sharding.PARTIAL, clipping=True)
    plan = plan_of(graph, replace(tied_chain(4), batch=batch), optimization=optimization)
    reports, state = run_locally(plan)
    assert [bool(each.skipped) for each in reports] == [False, True, False]
    expected = train_plainly(plan, range(3))
    assert abs(reports[2].loss - expected.losses[2]) < EXACT
    assert weight_error(expected.parameters, state) < EXACT


def given() -> Model:
    """Modules of a user's own, two of which have one `nn.Parameter`."""
    first, last = Tanh(WIDTH), Scores(WIDTH)
    last.matrix = first.linear.weight
    return Model([first, Tanh(WIDTH), Tanh(WIDTH), last], mean_square, partial(numbers, WIDTH))


def kept() -> Model:
    """Functions that return modules which share one."""
    model = given()
    layers = [lambda module=each: module for each in model.layers]
    return replace(model, layers=layers)


@pytest.mark.parametrize("make", [given, kept])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_modules_that_share_a_parameter_are_tied(make: Callable[[], Model], ranks: int) -> None:
    torch.manual_seed(7)
    plan = plan_of(tied("breadth-first", Layout(ranks, 2), Sharding.FULL), make())
    plan.check()
    assert errors_of(plan).worst < EXACT
    assert "3.matrix" not in run_locally(plan)[1]


def refused(model: Model, *, stages: int = 2, ties: bool = True) -> str:
    communication = Communication(tied_embeddings=ties)
    plan = Plan(build_graph("gpipe", Layout(stages, 2), communication), model)
    with pytest.raises(InvalidConfiguration) as found:
        plan.check()
    return str(found.value)


def test_what_cannot_be_tied_is_refused() -> None:
    assert "in stages 0 and 1, whose gradients nothing adds up: --tied" in refused(
        tied_chain(4), ties=False
    )
    inner = replace(tied_chain(4), tied={"2.linear.weight": "1.linear.weight"})
    assert "in stages 1 and 2: only the first and the last stage may share any" in refused(
        inner, stages=4
    )
    unknown = replace(tied_chain(4), tied={"3.matrix": "0.weight"})
    assert "ties 0.weight, and has no such parameter" in refused(unknown)
    unlike = replace(tied_chain(4), tied={"3.bias": "0.linear.bias"})
    assert "tied_embeddings: the first and the last stage share no parameter" in refused(
        replace(tied_chain(4), tied={})
    )
    assert "ties 3.bias, [3] in torch.float32, to 0.linear.bias, [4]" in refused(unlike)


def test_any_layout_loads_what_any_other_saved(tmp_path: Path) -> None:
    """Tied in one unit, on one rank and on two, whole and in shares; moments are loaded, too."""
    layouts = [
        ("gpipe", Layout(1, 4), Sharding.NONE),
        ("1f1b", Layout(2, 4), Sharding.FULL),
        ("zb-v", find_schedule("zb-v").layout(2, 4), Sharding.PARTIAL),
    ]
    plans = [plan_of(tied(*each), tied_chain(5)) for each in layouts]
    saved = []
    for number, plan in enumerate(plans):
        with training(plan) as run:
            run.run(range(2))
            saved.append(run.save(tmp_path / str(number), 2))
            names = pieces_of(run.backend.workers).keys()
        assert not any(name.startswith("4.matrix") for name in names)
        assert "0.linear.weight first moment" in names
    for plan, path in zip([*plans[1:], plans[0]], saved, strict=True):
        with training(plan) as run, training(plans[0]) as other:
            run.load(path)
            other.load(path)
            assert same(run.values(), other.values())


SIZES = TransformerSizes(
    layers=2, hidden=8, heads=2, context=4, vocabulary=264, mlp=8, kv_heads=2, tied=True
)


TEXT = Text(np.arange(4000).astype(np.uint8), SIZES.context, 1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_divided_transformer_is_exact(ranks: int) -> None:
    """Each tensor-parallel rank has the same slice of the words at both ends; or in one unit."""
    graph = tied("1f1b", Layout(ranks, 2), Sharding.FULL, clipping=True)
    plan = plan_of(graph, transformer(SIZES, TEXT), tp=2, dp=1)
    plan.check()
    assert errors_of(plan).worst < EXACT


def test_divided_copies_are_loaded_by_any_other_layout(tmp_path: Path) -> None:
    """Of words that tensor-parallel ranks divide unevenly, at both ends or in one unit."""
    sizes = replace(SIZES, layers=4, vocabulary=257)
    layouts = [
        (tied("1f1b", Layout(2, 2), Sharding.FULL), 2, 2),
        (tied("1f1b", Layout(2, 2), Sharding.NONE), 1, 2),
        (tied("gpipe", Layout(1, 2), Sharding.PARTIAL), 2, 1),
        (tied("breadth-first", Layout(2, 2, 2), Sharding.FULL), 1, 1),
    ]
    plans = [plan_of(graph, transformer(sizes, TEXT), tp=tp, dp=dp) for graph, tp, dp in layouts]
    plain = plan_of(tied("gpipe", Layout(1, 2), Sharding.NONE), transformer(sizes, TEXT), dp=1)
    for number, plan in enumerate(plans):
        with training(plan) as run:
            run.run(range(2))
            path, expected = run.save(tmp_path / str(number), 2), run.values()
        assert not any("scores" in name for name in expected)
        for other in (plain, plans[number - 1]):
            with training(other) as run:
                run.load(path)
                assert same(run.values(), expected)

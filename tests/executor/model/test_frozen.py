"""Frozen parameters, as the base of LoRA: they stay, without gradients and moments."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bfpp.executor.model.model import Model
from bfpp.executor.plan.plan import Plan
from bfpp.executor.run.state import pieces_of, weights_of, whole
from bfpp.executor.settings import Activations, DType, Optimization
from bfpp.executor.train.reference import train_plainly
from bfpp.schedules import Communication, Layout, Sharding, build_graph
from tests.helpers.small_models import Tanh, mean_square, numbers
from tests.helpers.training_runs import EXACT, compare, same, training

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 4


class Adapted(nn.Module):
    """A frozen layer with a low-rank correction that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Tanh(WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 1, bias=False), nn.Linear(1, WIDTH, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        result: Tensor = self.base(value) + self.up(self.down(value))
        return result


def frozen() -> nn.Module:
    return Tanh(WIDTH).requires_grad_(False)


def mostly_frozen(width: int, frozen: int) -> nn.Module:
    """A layer that is trained, behind several that are not."""
    fixed = [Tanh(width).requires_grad_(False) for _ in range(frozen)]
    return nn.Sequential(*fixed, Tanh(width))


def adapted(layers: int) -> Model:
    """The first layer is frozen, and another between those that are adapted."""
    given = [frozen, Adapted, frozen, *[Adapted] * (layers - 3)]
    return Model(given, mean_square, partial(numbers, WIDTH))


def plan_of(schedule: str, sharding: Sharding, activations: Activations, precision: str) -> Plan:
    graph = build_graph(schedule, Layout(2, 4, 2), Communication(sharding))
    return Plan(
        graph,
        adapted(5),
        dp=2,
        precision=DType(precision),
        activations=activations,
        optimization=Optimization(1e-2, 0.1),
    )


@pytest.mark.parametrize("activations", Activations)
@pytest.mark.parametrize("sharding", Sharding)
@pytest.mark.parametrize("schedule", ["breadth-first", "zb1p"])
def test_frozen_layers_stay_and_the_others_train_as_in_a_plain_loop(
    schedule: str, sharding: Sharding, activations: Activations, tmp_path: Path
) -> None:
    plan = plan_of(schedule, sharding, activations, "float64")
    with training(plan) as run:
        before = run.values()
        losses = run.run(range(3))
        after = run.values()
        assert compare(plan, losses, pieces_of(run.backend.workers)).worst < EXACT
        fixed = {name for name in before if name.startswith(("0.", "2.")) or ".base." in name}
        assert len(fixed) == 10
        for name, value in before.items():
            assert torch.equal(value, after[name]) is (name in fixed), name
            assert name.partition(" ")[0] not in fixed or name in fixed  # no moments
        path = run.save(tmp_path, 3)
    with training(plan) as other:
        other.load(path)
        assert same(other.values(), after)


@pytest.mark.parametrize("sharding", Sharding)
def test_stages_may_differ_in_how_much_of_them_is_frozen(sharding: Sharding) -> None:
    width = 8  # a layer's share is more than the least
    layers = [partial(mostly_frozen, width, frozen) for frozen in (1, 3, 0, 2)]
    graph = build_graph("breadth-first", Layout(2, 4, 2), Communication(sharding))
    model = Model(layers, mean_square, partial(numbers, width))
    plan = Plan(graph, model, dp=2, precision=DType.FLOAT64)
    with training(plan) as run:
        if sharding is Sharding.FULL:  # they take turns in one buffer
            for worker in run.backend.workers:
                worker.prepare()
            units = [unit for each in run.backend.workers for unit in each.units.values()]
            assert any(unit.size < len(unit.buffers[unit.reads]) for unit in units)
        losses = run.run(range(2))
        assert compare(plan, losses, pieces_of(run.backend.workers)).worst < EXACT
        expected = train_plainly(plan, range(2)).parameters
        sent = weights_of(run.backend.workers)
        pieces = [piece for held in sent.values() for _, piece in held.pieces]
        assert all(piece.untyped_storage().nbytes() == piece.nbytes for piece in pieces)
        weights = whole([sent])  # what --verify compares
        assert weights.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(weights[name], value.flatten(), rtol=0, atol=EXACT)


def test_no_gradient_goes_below_what_is_trained() -> None:
    plan = plan_of("breadth-first", Sharding.NONE, Activations.RECOMPUTE, "float32")
    assert [form.has_gradient for form in plan.forms] == [(True,)] * 4  # two layers in the first
    alone = Plan(plan.graph, adapted(4), precision=DType.FLOAT64)
    assert [form.has_gradient for form in alone.forms] == [(False,), (True,), (True,), (True,)]


@pytest.mark.parametrize("sharding", Sharding)
def test_frozen_weights_have_neither_gradients_nor_moments(sharding: Sharding) -> None:
    plan = plan_of("breadth-first", sharding, Activations.RECOMPUTE, "bfloat16")
    with training(plan) as run:
        for worker in run.backend.workers:
            worker.prepare()
            updated = {part.state for parts in worker.updates.parts.values() for part in parts}
            assert updated == {unit.state for unit in worker.units.values()}
            for unit in worker.units.values():
                assert unit.frozen is not None
                assert unit.frozen.weights.grad is None
                assert unit.flat.shapes.keys().isdisjoint(unit.frozen.flat.shapes)
            assert {len(each) for each in worker.gradients.values()} == {
                max(unit.flat.size for unit in worker.units.values())
            }
        assert len(run.run(range(1))) == 1

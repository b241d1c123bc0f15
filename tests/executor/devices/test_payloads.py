"""Payloads between stages: any pytree of tensors, and of lengths that vary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from bfpp.executor.devices.messages import Form, Message, Shape, Tree, tensors_of
from bfpp.executor.dispatch.mock_worker import MockWorker
from bfpp.executor.dispatch.split_backward import backward_input, backward_weight
from bfpp.executor.model.model import Model
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import Activations, DType, Optimization
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Sharding,
    TaskGraph,
    build_graph,
)
from tests.helpers.small_models import chain, mean_square, numbers
from tests.helpers.training_runs import EXACT, errors_of, run_locally

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 4


class Streams(nn.Module):
    """Two streams that mix, under a mask, beside whole numbers and what has no gradient."""

    def __init__(self, is_first: bool = False) -> None:
        super().__init__()
        self.is_first = is_first
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.places = nn.Embedding(8, WIDTH)

    def forward(self, value: Tree) -> Tree:
        hidden, other = (value["x"], value["x"]) if self.is_first else value["streams"]
        mixed = torch.tanh(self.left(hidden) + self.places(value["places"]))
        mixed = mixed.masked_fill(value["mask"], 0.0)
        other = other + torch.sin(self.right(other)) * value["x"]
        return {**value, "streams": (mixed + other, other * 0.5), "about": [None, 3, "text"]}


class First(nn.Module):
    """The inputs of the loss."""

    def forward(self, value: Tree) -> Tensor:
        first, second = value["streams"]
        return first + second


def batch(step: int, samples: range) -> tuple[Tree, Tensor]:
    inputs, targets = numbers(WIDTH, step, samples)
    places = torch.tensor([[each % 8] for each in samples])[:, 0]
    return {"x": inputs, "places": places, "mask": inputs > 1}, targets


def streams(layers: int) -> Model:
    given = [partial(Streams, number == 0) for number in range(layers)]
    return Model([*given, First], mean_square, batch, attached=(0, 1))


def plan_of(graph: TaskGraph, model: Model, replicas: int = 1, **settings: object) -> Plan:
    exact = {"precision": DType.FLOAT64, "microbatch_size": 2}
    given = {**exact, "optimization": Optimization(1e-2), "dp": replicas, **settings}
    return Plan(graph, model, **given)  # type: ignore[arg-type]


def graph_of(schedule: str, sharding: Sharding = Sharding.FULL) -> TaskGraph:
    loops = 1 if schedule in ("gpipe", "zb-h1") else 2
    return build_graph(schedule, Layout(2, 4, loops), Communication(sharding))


@pytest.mark.parametrize("activations", Activations)
@pytest.mark.parametrize("schedule", ["breadth-first", "zb-h1", "zb1p"])
def test_trees_train_as_in_a_plain_loop(schedule: str, activations: Activations) -> None:
    graph = graph_of(schedule)
    plan = plan_of(graph, streams(graph.layout.units), 2, activations=activations)
    assert errors_of(plan).worst < EXACT


def test_only_what_has_a_gradient_comes_back() -> None:
    form = plan_of(graph_of("gpipe"), streams(2)).forms[0]
    hidden = Shape((2, WIDTH), torch.float64)
    assert sorted(map(str, form.values.parts)) == sorted(
        map(str, [hidden] * 3 + [Shape((2, WIDTH), torch.bool), Shape((2,), torch.int64)])
    )
    assert form.gradients.parts == (hidden, hidden)


def test_a_worker_that_sleeps_sends_as_much() -> None:
    from bfpp.executor.settings import Sleeps

    none = (0.0, 0.0)
    make: Any = partial(MockWorker, sleeps=Sleeps(none, none, none, none))
    reports, _ = run_locally(plan_of(graph_of("gpipe"), streams(2)), range(1), make)
    assert reports[0].loss == 0.0


def test_parts_lie_side_by_side_in_a_message() -> None:
    kinds = (torch.bool, torch.float64, torch.bfloat16, torch.int64)
    sizes = ((3,), (2, 5), (), (0, 2))
    parts = tuple(Shape(size, dtype) for size, dtype in zip(sizes, kinds, strict=True))
    message = Message(parts)
    memory = torch.zeros(message.shape.size, dtype=message.shape.dtype)
    for number, view in enumerate(message.views(memory)):
        assert Shape.of(view) == parts[number]
        assert not view.any()  # none lies in another
        view.fill_(1)
    assert Message(()).shape == Shape((1,), torch.uint8)
    alone = Shape((2, 3), torch.float32)
    assert Message((alone,)).shape == alone


@pytest.mark.parametrize(
    "change",
    [lambda x: x[:1], lambda x: x.half(), lambda x: (x,), lambda x: [x, None]],
    ids=["size", "precision", "structure", "constant"],
)
def test_a_value_of_another_form_is_refused(change: Callable[[Tensor], Tree]) -> None:
    value = torch.zeros(2, 3)
    form = Form.of(value, "")
    assert form.require(value, "it is") == (value,)
    with pytest.raises(InvalidConfiguration, match=r"it is .* and the first had shape"):
        form.require(change(value), "it is")


class Growing(nn.Module):
    """A layer whose result has another size in the second step."""

    def forward(self, value: Tensor) -> Tensor:
        return value[:, : 2 + (value.sum() > 0)] if value.device.type == "cpu" else value[:, :2]


def test_sizes_that_depend_on_the_data_are_refused_between_stages() -> None:
    model = Model([Growing, nn.Tanh], lambda output, _: output.sum(), partial(numbers, WIDTH))
    with pytest.raises(InvalidConfiguration, match=r"stage 0 returns shape \(2, 3\)"):
        run_locally(plan_of(graph_of("gpipe"), model), range(8))


# Halves


def both(first: Tensor, second: Tensor, weights: list[Tensor]) -> list[Tensor]:
    one, two, three, shared = weights
    mixed = torch.tanh(first @ one) * second
    return [mixed @ shared, mixed + second @ two, torch.sin(three @ shared)]


def test_halves_of_several_inputs_and_results() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    values = [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    results = both(*values, weights)
    gradients = [torch.randn_like(each) for each in results]
    expected = torch.autograd.grad(results, [*values, *weights], gradients, retain_graph=True)
    starts = [get_gradient_edge(value) for value in values]
    found, branches = backward_input(values, starts, results, gradients)
    assert all(weight.grad is None for weight in weights)
    backward_weight(branches)
    for one, other in zip([*found, *(weight.grad for weight in weights)], expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-15)


# Lengths that vary


class Tokens(nn.Module):
    """A layer for sequences of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return torch.tanh(self.linear(value)).cumsum(dim=1)


def sequences(step: int, samples: range) -> tuple[Tensor, Tensor]:
    length = 2 + step % 3
    rows = [numbers(WIDTH, 10 * step + place, samples) for place in range(length)]
    inputs, targets = (torch.stack(each, dim=1) for each in zip(*rows, strict=True))
    return inputs, targets


@pytest.mark.parametrize("schedule", ["breadth-first", "zb1p"])
def test_lengths_may_vary_from_step_to_step(schedule: str) -> None:
    graph = graph_of(schedule)
    model = Model([Tokens] * graph.layout.units, mean_square, sequences, varies=True)
    assert errors_of(plan_of(graph, model, 2)).worst < EXACT
    with pytest.raises(InvalidConfiguration, match=r"returns inputs of shape \(2, 3, 4\)"):
        errors_of(plan_of(graph, replace(model, varies=False)))


def test_the_form_of_a_step_is_looked_for_once() -> None:
    asked: Counter[tuple[int, range]] = Counter()

    def counted(step: int, samples: range) -> tuple[Tensor, Tensor]:
        asked[step, samples] += 1
        return sequences(step, samples)

    model = Model([Tokens, Tokens], mean_square, counted, varies=True)
    plan = plan_of(build_graph("gpipe", Layout(2, 4)), model, 2)
    first, *others = (plan.samples(0, microbatch) for microbatch in range(4))
    run_locally(plan, range(1, 4))
    for step in range(1, 4):
        assert {asked[step, each] for each in others} == {2}  # by the first and the last rank
        assert asked[step, first] <= 2 + 2  # its form, and if that is new, its trace


def test_lengths_may_not_vary_within_a_step() -> None:
    def uneven(step: int, samples: range) -> tuple[Tensor, Tensor]:
        inputs, targets = sequences(step + samples.start, samples)
        return inputs, targets

    model = replace(chain(2), layers=[Tokens, Tokens], batch=uneven, varies=True)
    with pytest.raises(InvalidConfiguration, match=r"batch\(0, range\(2, 4\)\) returns inputs of"):
        run_locally(plan_of(graph_of("gpipe"), model))


def test_tensors_are_in_the_order_of_the_tree() -> None:
    value = {"b": torch.ones(1), "a": (torch.ones(2), None, [torch.ones(3)])}
    assert [len(tensor) for tensor in tensors_of(value)] == [1, 2, 3]
    form = Form.of(value, "")
    assert form.filled(tensors_of(value))["a"][1] is None

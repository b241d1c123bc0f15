"""In how many bits gradients are added up, and sent."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from gc import collect
from weakref import ref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bfpp.executor.devices.lanes import Threads
from bfpp.executor.dispatch.backends.local import LocalBackend
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
from tests.helpers.small_models import Tanh, chain, mean_square, numbers
from tests.helpers.strategies import order_graphs
from tests.helpers.training_runs import run_locally, training

WIDTH = 8

pytestmark = pytest.mark.usefixtures("one_thread")


class Rounded(Tanh):
    """With weights that bfloat16 has, so that runs in all precisions begin alike."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        for parameter in self.parameters():
            parameter.data = parameter.data.bfloat16().float()


def rounded_numbers(first: int, step: int, samples: range) -> tuple[Tensor, Tensor]:
    inputs, targets = numbers(WIDTH, step, range(first + samples.start, first + samples.stop))
    return inputs.bfloat16().double(), (targets + 2).bfloat16().double()


def model_of(layers: int, first: int = 0) -> Model:
    """A chain whose samples begin with one of them."""
    return Model([partial(Rounded, WIDTH)] * layers, mean_square, partial(rounded_numbers, first))


def plan_of(graph: TaskGraph, **others: object) -> Plan:
    defaults: dict[str, object] = {
        "precision": DType.BFLOAT16,
        "optimization": Optimization(1e-2, clip=1e9 if graph.communication.clipping else None),
    }
    model = model_of(graph.layout.units)
    return Plan(graph, **({"model": model} | defaults | others))  # type: ignore[arg-type]


def gpipe(microbatches: int, sharding: Sharding = Sharding.NONE, ranks: int = 2) -> TaskGraph:
    return build_graph("gpipe", Layout(ranks, microbatches), Communication(sharding))


def gradients(plan: Plan) -> dict[str, Tensor]:
    """Those of the first step: ten times the optimizer's first moments after it."""
    _, state = run_locally(plan, range(1))
    found = {}
    for name, held in state.items():
        if name.endswith(" first moment"):
            whole = torch.full((held.size,), torch.nan, dtype=plan.gradient_dtype)
            for offset, piece in held.pieces:
                whole[offset : offset + len(piece)] = piece
            found[name] = 10 * whole
    return found


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The distance between gradients, as a share of their norm."""
    first, second = (torch.cat([each[name].double() for name in one]) for each in (one, other))
    return float((first - second).norm() / second.norm())


MANY = 256


@pytest.mark.parametrize("sharding", Sharding)
def test_many_micro_batches_lose_no_precision(
    sharding: Sharding, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(gpipe(MANY, sharding, ranks=1), model=model_of(2))
    exact = gradients(replace(plan, precision=DType.FLOAT64))
    assert distance(gradients(plan), exact) < 0.004
    monkeypatch.setattr(Plan, "gradient_dtype", torch.bfloat16)
    monkeypatch.setattr("bfpp.executor.memory.rank_memory.reduced_in_place", lambda *_: set())
    assert distance(gradients(plan), exact) > 0.012


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    # What copies of stages add up alone is reduced once more.
    order_graphs(2, 2).filter(
        lambda graph: graph.layout.microbatches != 3 and not graph.layout.copies
    ),
    st.sampled_from(Activations),
)
def test_each_micro_batchs_gradient_is_added_in_single_precision(
    graph: TaskGraph, activations: Activations
) -> None:
    """Whatever the order, halves of backward passes in it; each alone is in 16 bits."""
    layout = graph.layout
    together = gradients(plan_of(graph, activations=activations))
    alone = [
        gradients(plan_of(gpipe(1, ranks=1), model=model_of(layout.units, first)))
        for first in range(layout.microbatches)
    ]
    for name, found in together.items():
        expected = sum(each[name] for each in alone) / layout.microbatches
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-9), name


def test_buffers_of_gradients_are_in_single_precision_at_least() -> None:
    for precision, expected in (
        (DType.BFLOAT16, torch.float32),
        (DType.FLOAT32, torch.float32),
        (DType.FLOAT64, torch.float64),
    ):
        for sharding in Sharding:
            plan = plan_of(gpipe(2, sharding), precision=precision)
            workers = LocalBackend(plan, Threads()).workers
            for each in workers:
                each.prepare()
            assert {b.dtype for each in workers for b in each.gradients.values()} == {expected}
            assert {b.dtype for each in workers for b in each.weights.values()} == {plan.dtype}


# What is sent


@pytest.mark.parametrize("sharding", Sharding)
def test_what_is_sent_may_have_less_precision(sharding: Sharding) -> None:
    plan = plan_of(gpipe(8, sharding), dp=4)
    full, less, same, best = map(
        gradients,
        (
            plan,
            replace(plan, reduce_precision=DType.BFLOAT16),
            replace(plan, reduce_precision=DType.FLOAT32),
            replace(plan, precision=DType.FLOAT64),
        ),
    )
    assert distance(full, best) < distance(less, best) < 0.02
    assert all(torch.equal(same[name], full[name]) for name in full)


def test_a_single_replica_sends_nothing() -> None:
    plan = plan_of(gpipe(4))
    less = gradients(replace(plan, reduce_precision=DType.BFLOAT16))
    assert all(torch.equal(less[name], value) for name, value in gradients(plan).items())


def test_no_more_can_be_sent_than_there_is() -> None:
    plan = Plan(gpipe(2), chain(2), reduce_precision=DType.FLOAT64)
    with pytest.raises(InvalidConfiguration, match="reduce_precision: float64 is more than"):
        plan.check()


def test_processes_agree_on_what_is_sent() -> None:
    plan = plan_of(gpipe(2))
    assert plan.digest == replace(plan, reduce_precision=DType.FLOAT32).digest
    assert plan.digest != replace(plan, reduce_precision=DType.BFLOAT16).digest


def test_memory_of_a_unit_goes_with_it() -> None:
    plan = Plan(build_graph("1f1b", Layout(2, 2)), chain(2), precision=DType.BFLOAT16)
    with training(plan) as found:
        found.run(range(1))
        units = [ref(unit) for worker in found.backend.workers for unit in worker.units.values()]
    del found
    collect()
    assert [unit() for unit in units] == [None, None]

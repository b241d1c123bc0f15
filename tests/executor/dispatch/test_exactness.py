"""Whatever the schedule, the cut and the sharding, training is that of a plain loop.

In double precision, over the local backend: all ranks in one process, each with
lanes of its own. `test_training_processes` does the same over gloo.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bfpp.executor.devices.lanes import Threads
from bfpp.executor.dispatch.backends.local import LocalBackend
from bfpp.executor.dispatch.dispatch import Dispatcher, Step
from bfpp.executor.model.model import Model
from bfpp.executor.settings import Activations, DType, EmbeddingStage
from bfpp.schedules import (
    Communication,
    Layout,
    Sharding,
    TaskGraph,
    build_graph,
    find_schedule,
    registered_schedules,
)
from tests.helpers.covering import covering
from tests.helpers.small_models import Tanh, chain, dropout, mean_square, numbers
from tests.helpers.strategies import (
    can_be_placed,
    configurations,
    order_graphs,
    some_configuration,
)
from tests.helpers.training_runs import EXACT, errors_of, plan_of, run_locally

pytestmark = pytest.mark.usefixtures("one_thread")


# Every schedule, sharding and cut


CUTS = [(2, 1), (1, 3), (3, 2), (4, 2)]
OTHER_CUTS = [(1, 1), (2, 4)]


def cases(
    cuts: Sequence[tuple[int, int]],
) -> Iterator[tuple[str, Sharding, tuple[int, int], Activations, bool, bool, bool]]:
    """A schedule, a sharding, a cut, what is kept, whether a run overlaps, clips and offloads."""
    for name, cut in product(registered_schedules(), cuts):
        if can_be_placed(find_schedule(name), cut[0]):
            settings = product(Sharding, Activations, *[(True, False)] * 3)
            yield from ((name, sharding, cut, *others) for sharding, *others in settings)


def assert_trains_as_a_plain_loop(
    name: str,
    sharding: Sharding,
    cut: tuple[int, int],
    activations: Activations,
    overlaps: bool,
    clips: bool,
    offloads: bool,
) -> None:
    ranks, replicas = cut
    communication = Communication(sharding, overlaps, overlaps, clips, offload=int(offloads))
    graph = some_configuration(find_schedule(name), ranks, communication).graph()
    model = chain(graph.layout.units + 1)  # one unit has two layers
    plan = plan_of(graph, model, replicas, activations=activations)
    assert errors_of(plan).worst < EXACT


@pytest.mark.parametrize("case", covering(cases(CUTS)), ids=lambda case: "-".join(map(str, case)))
def test_every_schedule_trains_as_a_plain_loop(case: tuple[Any, ...]) -> None:
    assert_trains_as_a_plain_loop(*case)


@pytest.mark.slow
@pytest.mark.parametrize("name", registered_schedules())
def test_every_schedule_trains_so_with_all_settings(name: str) -> None:
    for case in cases(CUTS + OTHER_CUTS):
        if case[0] == name:
            assert_trains_as_a_plain_loop(*case)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.one_of(
        order_graphs(3, 3),
        configurations(3, 3, 24).map(lambda each: each.graph()),
    ),
    st.integers(1, 3),
    st.sampled_from(Activations),
    st.integers(1, 2),
    st.integers(0, 2),
)
def test_any_order_that_can_run_trains_as_a_plain_loop(
    graph: TaskGraph, replicas: int, activations: Activations, size: int, more_layers: int
) -> None:
    model = chain(graph.layout.units + more_layers)
    plan = plan_of(graph, model, replicas, activations=activations, microbatch_size=size)
    assert errors_of(plan).worst < EXACT


def breadth_first(
    ranks: int = 2, loops: int = 2, microbatches: int = 4, sharding: Sharding = Sharding.FULL
) -> TaskGraph:
    layout = Layout(ranks, microbatches, loops)
    return build_graph("breadth-first", layout, Communication(sharding))


ODD = {
    "one micro-batch": (breadth_first(microbatches=1), 4),
    "micro-batches that ranks do not divide": (breadth_first(3, 2, 4), 6),
    "one rank": (breadth_first(1, 4, 3), 4),
    "one rank, stage and micro-batch": (breadth_first(1, 1, 1), 1),
    "stages of two sizes": (breadth_first(2, 2, 2), 7),
    "ends of their own": (breadth_first(2, 2, 2), 5),
}


@pytest.mark.parametrize("activations", Activations)
@pytest.mark.parametrize("case", ODD)
def test_odd_shapes(case: str, activations: Activations) -> None:
    graph, layers = ODD[case]
    apart = case == "ends of their own"
    model = replace(chain(layers, 3), attached=(1, 1) if apart else (0, 0))
    ends = EmbeddingStage.OWN if apart else EmbeddingStage.ATTACHED
    settings = {"activations": activations, "ends": ends, "microbatch_size": 1}
    assert errors_of(plan_of(graph, model, 2, **settings)).worst < EXACT


@pytest.mark.parametrize("replicas", [1, 2])
def test_single_precision_differs_by_rounding_alone(replicas: int) -> None:
    plan = plan_of(breadth_first(), chain(6, 16), replicas, precision=DType.FLOAT32)
    assert errors_of(plan).worst < 1e-5


# Layers of all kinds


class Shifted(Tanh):
    """With a buffer, and a parameter that nothing uses."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("shift", torch.linspace(0.0, 1.0, width))
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value + self.shift.to(value.dtype))


def modules(*layers: nn.Module) -> Model:
    return Model(layers, mean_square, partial(numbers, 4))


def tied() -> Model:
    layers = [Tanh(4) for _ in range(8)]
    layers[1].linear = layers[0].linear
    return modules(*layers)


MODELS: dict[str, Callable[[], Model]] = {
    "random numbers": lambda: chain(8, 4, dropout),
    "modules of the caller's": lambda: modules(*(Tanh(4) for _ in range(8))),
    "a parameter that two layers of a stage share": tied,
    "buffers, and parameters without a use": lambda: chain(8, 4, Shifted),
    "stages that only pass their input on": lambda: modules(
        *(each for _ in range(4) for each in (Tanh(4), nn.Identity()))
    ),
    "stages without parameters": lambda: modules(*(nn.Tanh() for _ in range(7)), Tanh(4)),
    "batch normalisation": lambda: chain(8, 4, lambda width: nn.BatchNorm1d(width)),
}


@pytest.mark.parametrize(
    ("name", "sharding", "activations"), covering(product(MODELS, Sharding, Activations))
)
def test_layers_of_all_kinds(name: str, sharding: Sharding, activations: Activations) -> None:
    torch.manual_seed(7)
    per_stage = 2 if "share" in name else 1
    graph = breadth_first(2, 4 // per_stage, 3, sharding)
    plan = plan_of(graph, MODELS[name](), 2, activations=activations, microbatch_size=3)
    assert errors_of(plan).worst < EXACT


class Queries(nn.Module):
    """A layer that hands on a view of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(4))

    def forward(self, value: Tensor) -> Tensor:
        return self.table.expand_as(value)


@pytest.mark.parametrize("activations", Activations)
@pytest.mark.parametrize("sharding", Sharding)
def test_weights_that_are_handed_on_to_the_same_rank(
    sharding: Sharding, activations: Activations
) -> None:
    torch.manual_seed(7)
    model = modules(Tanh(4), Queries(), *(Tanh(4) for _ in range(4)))
    plan = plan_of(breadth_first(1, 6, 3, sharding), model, 2, activations=activations)
    assert errors_of(plan).worst < EXACT


def test_batches_that_are_filled_into_one_tensor() -> None:
    room = torch.empty(2, 1, 4, dtype=torch.float64)

    def batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
        for part, values in zip(room, numbers(4, step, samples), strict=True):
            part.copy_(values)
        return room[0], room[1]

    model = replace(chain(4), batch=batch)
    assert errors_of(plan_of(breadth_first(), model, 2, microbatch_size=1)).worst < EXACT


def test_a_batch_that_takes_long_counts_from_step_to_step() -> None:
    def batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
        time.sleep(0.03)
        return numbers(4, step, samples)

    reports, _ = run_locally(plan_of(breadth_first(), replace(chain(4), batch=batch)))
    for report in reports:
        assert report.elapsed > max(report.seconds, 0.03)


def test_processes_with_other_data_have_another_digest() -> None:
    def batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
        inputs, targets = numbers(4, step, samples)
        return inputs, targets + 1

    models = chain(4), chain(4), replace(chain(4), batch=batch)
    one, same, other = (plan_of(breadth_first(), model).digest for model in models)
    assert one == same != other


@settings(max_examples=15, deadline=None, derandomize=True)
@given(order_graphs(2, 3), st.sampled_from(Activations), st.booleans())
def test_stages_that_pass_on_what_they_got_in_any_order(
    graph: TaskGraph, activations: Activations, first: bool
) -> None:
    layers = [nn.Identity() if (number % 2) == first else dropout(4)
              for number in range(graph.layout.units)]  # fmt: skip
    if all(isinstance(layer, nn.Identity) for layer in layers):
        layers[-1] = Tanh(4)
    plan = plan_of(graph, modules(*layers), 2, activations=activations)
    assert errors_of(plan).worst < EXACT


def test_training_leaves_the_given_modules_as_they_are() -> None:
    layers = [Tanh(4) for _ in range(4)]
    before = [layer.linear.weight.clone() for layer in layers]
    run_locally(plan_of(breadth_first(), modules(*layers)))
    for layer, weight in zip(layers, before, strict=True):
        assert layer.linear.weight.dtype is torch.float32
        assert torch.equal(layer.linear.weight, weight)


def test_random_numbers_depend_neither_on_the_cut_nor_on_the_schedule() -> None:
    losses = {}
    for name, ranks, replicas in (("gpipe", 2, 1), ("breadth-first", 1, 2), ("1f1b", 4, 1)):
        layout = registered_schedules()[name].divided(ranks, 4 // replicas, 1)
        graph = build_graph(name, layout, Communication())
        reports, _ = run_locally(plan_of(graph, chain(4, 4, dropout), replicas))
        losses[name] = [report.loss for report in reports]
    expected = pytest.approx(losses.pop("gpipe"), abs=EXACT, rel=0)
    assert all(each == expected for each in losses.values())


def test_a_run_repeats_bit_by_bit() -> None:
    plan = plan_of(breadth_first(2, 2, 3), replicas=4, precision=DType.FLOAT32)
    first, second = (run_locally(plan) for _ in range(2))
    assert [each.loss for each in first[0]] == [each.loss for each in second[0]]
    for name, pieces in first[1].items():
        pairs = zip(pieces.pieces, second[1][name].pieces, strict=True)
        assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)


# On another device: on none, where tensors have shapes and a place but no values


class Meta(Threads):
    device = torch.device("meta")


@pytest.mark.parametrize("sharding", Sharding)
def test_all_tensors_are_on_the_workers_device(sharding: Sharding) -> None:
    graph = breadth_first(sharding=sharding)
    plan = plan_of(graph, chain(4, 4, Shifted), 2, precision=DType.BFLOAT16)
    device = Meta()
    backend = LocalBackend(plan, device)
    dispatcher = Dispatcher(plan, backend)
    for number in range(2):
        dispatcher.dispatch(step := Step(number))
        device.finish(step.last)
        assert {loss.device.type for loss in step.losses.values()} == {"meta"}
    dispatcher.close()

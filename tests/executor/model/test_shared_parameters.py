"""Parameters that layers share, by whatever way: tied within a stage, refused between most."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn

from bfpp.executor.model.batches import is_same
from bfpp.executor.model.model import Layer, Model, cut
from bfpp.executor.model.tracing.tracing import trace
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import Activations, DType, Optimization
from bfpp.schedules import Communication, InvalidConfiguration, Layout, Sharding, build_graph
from tests.helpers.small_models import Tanh, mean_square, numbers
from tests.helpers.training_runs import EXACT, errors_of, run_locally

WIDTH = 4


def model_of(layers: list[Layer]) -> Model:
    return Model(layers, mean_square, partial(numbers, WIDTH))


def tanh() -> nn.Module:
    return Tanh(WIDTH)


def captured() -> list[Layer]:
    module = tanh()
    return [lambda: module, lambda: module]


def cached() -> list[Layer]:
    return [cache(tanh)] * 2


def cached_inside() -> list[Layer]:
    made = cache(tanh)
    return [lambda: nn.Sequential(made()), lambda: nn.Sequential(made(), nn.Tanh())]


def one_given() -> list[Layer]:
    module = tanh()
    return [module, lambda: module]


def tied_weight() -> list[Layer]:
    weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def tied() -> nn.Module:
        module = nn.Linear(WIDTH, WIDTH)
        module.weight = weight
        return module

    return [tied, tied]


SHARED: dict[str, Callable[[], list[Layer]]] = {
    each.__name__: each for each in (captured, cached, cached_inside, one_given, tied_weight)
}


def transposed() -> list[Layer]:
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    second.weight = nn.Parameter(first.weight.detach().t())
    return [lambda: first, second]


@pytest.mark.parametrize("make", SHARED.values())
def test_stages_that_share_a_parameter_are_refused(make: Callable[[], list[Layer]]) -> None:
    """But for the first and the last one, of a graph that adds up their gradients."""
    torch.manual_seed(7)
    first, second = make()
    model = model_of([tanh, first, tanh, second])
    for stages, own, ties_ends, reason in (
        (2, "0 and 1", False, "whose gradients nothing adds up: --tied-embeddings does"),
        (4, "1 and 3", True, "only the first and the last stage may share any"),
    ):
        message = f"layers 1 and 3 share a parameter, and are in stages {own}[,:] {reason}"
        with pytest.raises(InvalidConfiguration, match=message):
            trace(model, cut(model, stages), 2, torch.float64, ties_ends=ties_ends)
    shared = trace(model, cut(model, 2), 2, torch.float64, ties_ends=True).shared
    assert {name: owner for name, owner in shared.items() if "weight" in name}
    assert all(owner.startswith("1.") for owner in shared.values())


def test_a_view_of_another_layers_parameter_is_refused() -> None:
    torch.manual_seed(7)
    first, second = transposed()
    model = model_of([tanh, first, tanh, second])
    for stages in (1, 2, 4):
        with pytest.raises(
            InvalidConfiguration, match="layer 3 are two parameters in the same memory"
        ):
            trace(model, cut(model, stages), 2, torch.float64, ties_ends=True)


def plan_of(layers: list[Layer], sharding: Sharding, activations: Activations) -> Plan:
    """Two stages of four layers on two ranks, twice."""
    return Plan(
        build_graph("breadth-first", Layout(2, 2, 1), Communication(sharding)),
        model_of(layers),
        dp=2,
        microbatch_size=2,
        precision=DType.FLOAT64,
        activations=activations,
        optimization=Optimization(1e-2),
    )


@pytest.mark.parametrize("sharding", Sharding)
@pytest.mark.parametrize("name", SHARED)
def test_within_a_stage_it_is_trained_as_one(name: str, sharding: Sharding) -> None:
    torch.manual_seed(7)
    first, second = SHARED[name]()
    for activations in Activations:
        plan = plan_of([first, second, tanh, tanh], sharding, activations)
        assert errors_of(plan).worst < EXACT
        tied = set(run_locally(plan)[1])
        assert any(name.startswith("0.") for name in tied)
        assert not any(name.startswith("1.") and "weight" in name for name in tied)


def test_training_leaves_a_module_that_a_function_returns_as_it_is() -> None:
    module = tanh()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    plan = plan_of([lambda: module, tanh, tanh, tanh], Sharding.FULL, Activations.KEEP)
    plan.check()
    run_locally(plan)
    for name, value in module.state_dict().items():
        assert is_same(value, before[name])
        assert value.device.type == "cpu"


@pytest.mark.parametrize("layer", [tanh, partial(Tanh, WIDTH)])
def test_a_function_that_makes_new_modules_shares_nothing(layer: Layer) -> None:
    """However many have been made and forgotten, at addresses that are used again."""
    model = model_of([layer] * 60)
    for _ in range(3):
        gc.collect()
        assert trace(model, cut(model, 30), 2, torch.float32).kept == set()


def test_a_layer_that_cannot_be_copied_need_not_be() -> None:
    class Locked(Tanh):
        def __deepcopy__(self, _: object) -> nn.Module:
            raise TypeError("it has a lock")

    make = partial(Locked, WIDTH)
    assert errors_of(plan_of([make] * 4, Sharding.FULL, Activations.KEEP)).worst < EXACT
    with pytest.raises(InvalidConfiguration, match=r"layer 1 \(Locked\) cannot be copied, so it"):
        plan_of([make, make(), make, make], Sharding.FULL, Activations.KEEP).check()


def test_a_function_that_keeps_what_it_makes_in_a_way_that_is_not_seen() -> None:
    """It would keep a module without values: it was first called on shapes alone."""
    made: dict[str, nn.Module] = {}

    def remembered() -> nn.Module:
        if not made:
            made["one"] = tanh()
        return made["one"]

    with pytest.raises(
        InvalidConfiguration, match="layer 1 is made by a function that returns different"
    ):
        plan_of([tanh, remembered, tanh, tanh], Sharding.FULL, Activations.KEEP).check()
    made["one"] = tanh()
    plan = plan_of([remembered, remembered, tanh, tanh], Sharding.FULL, Activations.KEEP)
    assert errors_of(plan).worst < EXACT


class Both(nn.Module):
    """Two parameters, of which one may be a view of the other."""

    def __init__(self, *, overlaps: bool) -> None:
        super().__init__()
        memory = torch.randn(2 * WIDTH)
        self.first = nn.Parameter(memory[:WIDTH])
        self.second = nn.Parameter(memory[1:][:WIDTH] if overlaps else memory[WIDTH:])

    def forward(self, value: Tensor) -> Tensor:
        return torch.tanh(value * self.first + self.second)


def test_two_parameters_in_one_memory_are_refused_if_they_overlap() -> None:
    torch.manual_seed(7)
    module = Both(overlaps=True)
    for make in (partial(Both, overlaps=True), module, lambda: module):
        with pytest.raises(InvalidConfiguration, match=r"first of layer 0 and second of layer 0"):
            plan_of([make, tanh, tanh, tanh], Sharding.FULL, Activations.KEEP).check()
    apart = Both(overlaps=False)
    for layer in (partial(Both, overlaps=False), apart, lambda: apart):
        plan = plan_of([layer, tanh, tanh, tanh], Sharding.FULL, Activations.KEEP)
        assert errors_of(plan).worst < EXACT

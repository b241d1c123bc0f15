"""State that passes change besides buffers is refused: nothing keeps or repeats it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bfpp.executor.model.model import Model
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import Activations, DType
from bfpp.schedules import Communication, InvalidConfiguration, Layout, build_graph
from tests.helpers.run_program import run_here
from tests.helpers.small_models import Tanh, chain, mean_square, numbers
from tests.helpers.training_runs import EXACT, errors_of, run_locally

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH = 4

elsewhere = ModuleType("elsewhere")
elsewhere.PASSES = 0  # type: ignore[attr-defined]


def plan_of(model: Model, **others: object) -> Plan:
    graph = build_graph("1f1b", Layout(2, 2), Communication())
    settings = {"precision": DType.FLOAT64, "microbatch_size": 2, **others}
    return Plan(graph, model, **settings)  # type: ignore[arg-type]


# Layers


class Layer(Tanh):
    """Its output times what `factor` says of a pass."""

    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value) * self.factor(value)

    def factor(self, value: Tensor) -> Tensor | float:
        raise NotImplementedError


class Counting(Layer):
    passes = 0

    def factor(self, _: Tensor) -> float:
        self.passes += 1
        return 1 + 0.01 * self.passes


class InAList(Layer):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.kept = {"passes": [0]}

    def factor(self, _: Tensor) -> float:
        self.kept["passes"][0] += 1
        return self.kept["passes"][0]


class Running(Layer):
    mean: Tensor | None = None

    def factor(self, value: Tensor) -> Tensor:
        now = value.detach().mean(dim=0)
        self.mean = now if self.mean is None else 0.9 * self.mean + 0.1 * now
        return self.mean


class InPlace(Layer):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.mean = torch.zeros(width, dtype=torch.float64)

    def factor(self, value: Tensor) -> Tensor:
        self.mean = self.mean.to(value.device)
        return self.mean.add_(value.detach().mean(dim=0))


class OwnGenerator(Layer):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.chance = torch.Generator()

    def factor(self, value: Tensor) -> Tensor:
        return torch.rand(value.shape, generator=self.chance, dtype=value.dtype)


class OwnRandom(Layer):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.chance = random.Random(0)

    def factor(self, _: Tensor) -> float:
        return self.chance.random()


class OfNumpy(OwnRandom):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.chance = np.random.default_rng(0)  # type: ignore[assignment]


class Iterating(Layer):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.numbers = count()

    def factor(self, _: Tensor) -> float:
        return next(self.numbers)


class PythonsRandom(Layer):
    def factor(self, _: Tensor) -> float:
        return random.random()


class NumpysRandom(Layer):
    def factor(self, _: Tensor) -> float:
        return float(np.random.normal())


def hooked(width: int) -> nn.Module:
    layer, passes = Tanh(width), [0]

    def more(_: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        passes[0] += 1
        return (given[0] * passes[0],)

    layer.register_forward_pre_hook(more)
    return layer


PASSES = 0


class Global(Tanh):
    def forward(self, value: Tensor) -> Tensor:
        global PASSES
        PASSES += 1
        return super().forward(value) * PASSES


class OfItsClass(Layer):
    passes = 0

    def factor(self, _: Tensor) -> float:
        type(self).passes += 1
        return self.passes


class Slotted:
    __slots__ = ("passes",)

    def __init__(self) -> None:
        self.passes = 0

    def __call__(self) -> int:
        self.passes += 1
        return self.passes


class InSlots(Layer):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.chance = Slotted()

    def factor(self, _: Tensor) -> float:
        return self.chance()


class InADefault(Layer):
    def factor(self, _: Tensor, passes: list[int] = [0]) -> float:  # noqa: B006
        passes[0] += 1
        return passes[0]


class OfAGenerator(Layer):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.numbers = self.doubled()

    def doubled(self) -> Iterator[int]:
        number = 1
        while True:
            yield number
            number *= 2

    def factor(self, _: Tensor) -> float:
        return next(self.numbers)


CHANCE, NUMBERS, SHARED = np.random.default_rng(0), count(), Slotted()


class SharedGenerator(Layer):
    def factor(self, _: Tensor) -> float:
        return CHANCE.random()


def numbered() -> float:
    return next(NUMBERS)


class ByAFunction(Layer):
    def factor(self, _: Tensor) -> float:
        return numbered()


class ByAnObject(Layer):
    def factor(self, _: Tensor) -> float:
        return SHARED()


class OfAModule(Layer):
    def factor(self, _: Tensor) -> float:
        elsewhere.PASSES += 1
        return elsewhere.PASSES


class Bounded(Layer):
    """The usual way to bound weights: where the optimizer's own are meant, there are flat ones."""

    def factor(self, _: Tensor) -> float:
        self.linear.weight.data.clamp_(-0.1, 0.1)
        return 1.0


class Renormalized(Layer):
    def factor(self, _: Tensor) -> float:
        self.linear.weight.data = torch.renorm(self.linear.weight.data, 2, 0, 0.5)
        return 1.0


REFUSED: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "a counter": (Counting, r"layer 0 \(Counting\) changes its passes in each pass"),
    "a counter in a list": (InAList, "changes its kept in each pass"),
    "a tensor that is replaced": (Running, "changes its mean in each pass"),
    "a tensor that is written to": (InPlace, "changes its mean in each pass"),
    "a generator of torch's": (OwnGenerator, "draws from a torch.Generator of its own"),
    "a generator of Python's": (OwnRandom, "changes its chance in each pass"),
    "a generator of numpy's": (OfNumpy, "changes its chance in each pass"),
    "an iterator": (Iterating, "changes its numbers in each pass"),
    "Python's random": (PythonsRandom, "draws from Python's random"),
    "numpy's random": (NumpysRandom, "draws from numpy's random"),
    "a counter of a hook": (hooked, "changes its passes in each pass"),
    "a global counter": (Global, "changes its PASSES in each pass"),
    "a counter of a class": (OfItsClass, "changes its passes in each pass"),
    "a counter in slots": (InSlots, "changes its chance in each pass"),
    "a counter in a default": (InADefault, "changes its passes in each pass"),
    "a generator function": (OfAGenerator, "changes its numbers in each pass|cannot be copied"),
    "a global generator": (SharedGenerator, "changes its CHANCE in each pass"),
    "a function's global": (ByAFunction, "changes its NUMBERS in each pass"),
    "a global object": (ByAnObject, "changes its SHARED in each pass"),
    "another module's counter": (OfAModule, r"changes its elsewhere\.PASSES in each pass"),
    "weights that are written to": (Bounded, r"changes its parameter linear\.weight in a pass"),
    "weights that are replaced": (Renormalized, r"changes its parameter linear\.weight in a pass"),
}


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_state_that_is_no_buffer_is_refused(name: str, kept: bool) -> None:
    """Of a layer that is made anew, and of one that is given; generators are as they were."""
    make, told = REFUSED[name]
    model = chain(2, WIDTH, make)
    if kept:
        model = replace(model, layers=[make(WIDTH), make(WIDTH)])
    before = random.getstate(), np.random.get_state(legacy=True)[2]
    with pytest.raises(InvalidConfiguration, match=told) as found:
        plan_of(model).check()
    assert "\n" not in str(found.value)
    assert before == (random.getstate(), np.random.get_state(legacy=True)[2])


class Caching(Layer):
    """Values made by the first pass, or anew by each, are no state."""

    cosines: Tensor | None = None
    calls: tuple[int, ...] = ()

    def factor(self, value: Tensor) -> Tensor:
        if self.cosines is None or self.cosines.device != value.device:
            self.cosines = torch.ones(WIDTH, dtype=value.dtype, device=value.device)
        self.calls = (*value.shape,)
        self.last = value.detach() * 2
        return self.cosines + 0 * self.last


HARMLESS: dict[str, Callable[[int], nn.Module]] = {
    "caches": Caching,
    "dropout": lambda width: nn.Sequential(Tanh(width), nn.Dropout(0.4)),
    "old spectral norm": lambda width: nn.utils.spectral_norm(nn.Linear(width, width)),
    "weight norm": lambda width: nn.utils.parametrizations.weight_norm(nn.Linear(width, width)),
}


@pytest.mark.parametrize("activations", Activations)
@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_no_state_trains_as_in_a_plain_loop(name: str, activations: Activations) -> None:
    plan = plan_of(chain(2, WIDTH, HARMLESS[name]), activations=activations)
    plan.check()
    assert errors_of(plan).worst < EXACT


# What others read of a layer


class Expert(Tanh):
    """The usual habit: what an auxiliary loss needs is left in the layer."""

    aux: Tensor | float = 0.0

    def forward(self, value: Tensor) -> Tensor:
        result = super().forward(value)
        self.aux = result.square().mean()
        return result


def given(loss: Callable[[list[Expert]], Callable[..., Tensor]]) -> Model:
    layers = [Expert(WIDTH) for _ in range(4)]
    return Model(layers, loss(layers), partial(numbers, WIDTH))


def by_attribute(layers: list[Expert]) -> Callable[..., Tensor]:
    return lambda output, targets: mean_square(output, targets) + layers[-1].aux


def by_all(layers: list[Expert]) -> Callable[..., Tensor]:
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return mean_square(output, targets) + sum(getattr(each, "aux") for each in layers)  # noqa: B009

    return loss


def by_weights(layers: list[Expert]) -> Callable[..., Tensor]:
    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return mean_square(output, targets) + layers[0].linear.weight.detach().square().sum()

    return loss


READ = {
    "an attribute": (by_attribute, r"the loss reads aux of layer 3 \(Expert\), but stages train"),
    "all of them": (by_all, r"the loss reads aux of layer 0 \(Expert\)"),
    "weights": (by_weights, "the loss reads linear.weight of layer 0"),
}


@pytest.mark.parametrize("name", READ)
def test_a_loss_that_reads_layers_is_refused(name: str) -> None:
    make, told = READ[name]
    model = given(make)
    with pytest.raises(InvalidConfiguration, match=told):
        plan_of(model).check()
    assert all(type(each) is Expert for each in model.layers)


@pytest.mark.parametrize("activations", Activations)
def test_one_that_needs_values_is_refused_when_it_is_first_called(activations: Activations) -> None:
    def decides(layers: list[Expert]) -> Callable[..., Tensor]:
        def loss(output: Tensor, targets: Tensor) -> Tensor:
            if output.sum() > 1e9:
                return output.sum()
            return mean_square(output, targets) + layers[0].aux

        return loss

    plan = plan_of(given(decides), activations=activations)
    plan.check()
    with pytest.raises(InvalidConfiguration, match="the loss reads aux of layer 0"):
        run_locally(plan)


def test_what_no_pass_sets_may_be_read() -> None:
    def sized(layers: list[Expert]) -> Callable[..., Tensor]:
        return lambda *both: mean_square(*both) * layers[0].linear.weight.shape[0]

    plan = plan_of(given(sized))
    plan.check()
    assert errors_of(plan).worst < EXACT


class Reading(Tanh):
    """A layer that reads what another one has left, and is no part of it."""

    def __init__(self, other: Expert) -> None:
        super().__init__(WIDTH)
        self.others = [other]

    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value) + self.others[0].aux


def test_a_layer_that_reads_one_of_another_stage_is_refused() -> None:
    experts = [Expert(WIDTH) for _ in range(3)]
    model = Model([*experts, Reading(experts[2])], mean_square, partial(numbers, WIDTH))
    near = plan_of(model)
    near.check()
    assert errors_of(near).worst < EXACT
    told = r"layer 3 \(Reading\) reads aux of layer 0 \(Expert\)"
    for last in (Reading(experts[0]), partial(Reading, experts[0])):
        with pytest.raises(InvalidConfiguration, match=told):
            plan_of(replace(model, layers=[*experts, last])).check()


def test_what_a_layer_returns_besides_is_trained() -> None:
    """The remedy that the message names."""

    class Returning(Tanh):
        def forward(self, given: object) -> object:
            value, before = given if isinstance(given, tuple) else (given, 0.0)
            result = super().forward(value)
            return result, before + result.square().mean()

    def loss(output: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        return mean_square(output[0], targets) + output[1]

    plan = plan_of(replace(chain(4, WIDTH, Returning), loss=loss))
    plan.check()
    assert errors_of(plan).worst < EXACT


# The loss itself


def noisy(output: Tensor, targets: Tensor) -> Tensor:
    return mean_square(output + torch.randn_like(output), targets)


def counting() -> Callable[..., Tensor]:
    steps = [0]

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        steps[0] += 1
        return mean_square(output, targets) * steps[0]

    return loss


class Smoothed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))

    def forward(self, output: Tensor, targets: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * output.detach().mean()
        return mean_square(output - self.mean, targets)


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (noisy, "the loss draws random numbers"),
        (counting(), "the loss changes its steps in each pass"),
        (Smoothed().to("meta"), "the loss has a buffer that it changes, mean"),
    ],
)
def test_a_loss_with_state_is_refused(loss: Callable[..., Tensor], told: str) -> None:
    with pytest.raises(InvalidConfiguration, match=told):
        plan_of(replace(chain(2), loss=loss)).check()


OWN = """
from tests.executor.model.test_hidden_state import *

def counts(seed):
    return chain(2, WIDTH, Counting)

def reads(seed):
    return given(by_attribute)
"""


@pytest.mark.parametrize(
    ("name", "told"),
    [("counts", "layer 0 (Counting) changes its passes"), ("reads", "the loss reads aux of")],
)
def test_the_command_says_it_in_a_line(
    name: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "own.py").write_text(OWN)
    ended = run_here(capsys, "gpipe", "--pp", 2, "--model", f"{file}:{name}", "--steps", 1)
    assert ended.code == 2
    assert ended.line.startswith(f"bfpp run: --model: {told}")


def test_a_model_without_held_out_batches_is_told_by_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "own.py").write_text(
        OWN + "\ndef plain(seed):\n    return chain(2, WIDTH)\n"
    )
    given = ["--pp", 2, "--model", f"{file}:plain", "--steps", 1, "--evaluate-every", 1]
    ended = run_here(capsys, "gpipe", *given)
    assert ended.code == 2
    assert ended.line.startswith("bfpp run: --evaluate-every: the model has no held-out batches")

"""A network of a user's own, divided by the names of its parts as torchtitan's stages are."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from bfpp.executor.model.model import Model
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import DType
from bfpp.schedules import Communication, InvalidConfiguration, Layout, Sharding, build_graph
from tests.helpers.small_models import Tanh, mean_square, numbers
from tests.helpers.training_runs import EXACT, errors_of

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS, WIDTH = 11, 4


class Turned(nn.Module):
    """A block that is called with what its network keeps, too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Tanh(WIDTH)

    def forward(
        self, value: Tensor, turns: tuple[Tensor, Tensor], mask: Tensor | None, *, scale: float
    ) -> Tensor:
        assert mask is None
        angles, shift = turns
        result: Tensor = value + scale * self.inner(value * angles + shift)
        return result


class Network(nn.Module):
    """Built and called as torchtitan's models are."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, WIDTH)
        self.register_buffer("angles", torch.linspace(0.5, 1, WIDTH, dtype=torch.float64))
        self.register_buffer("shift", torch.linspace(0, 1, WIDTH, dtype=torch.float64))
        self.layers = nn.ModuleDict({str(number): Turned() for number in range(layers)})
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        value = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            value = layer(value, (self.angles, self.shift), None, scale=0.5)
        result: Tensor = self.output(self.norm(value))
        return result


NAMES = ["tok_embeddings", *(f"layers.{number}" for number in range(4)), "norm", "output"]


def batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(step)
    tokens = torch.randint(WORDS, (64, 6), generator=chance)[samples.start : samples.stop]
    return tokens[:, :-1], tokens[:, 1:]


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def model_of(network: nn.Module | None = None) -> Model:
    torch.manual_seed(3)
    return Model.of(network or Network(), loss, batch)


def plan_of(cut: str | None, layout: Layout, schedule: str = "1f1b", **settings: object) -> Plan:
    graph = build_graph(schedule, layout, Communication(Sharding.FULL))
    given = {"dp": 2, "precision": DType.FLOAT64, **settings}
    return Plan(graph, model_of(), cut=cut, **given)  # type: ignore[arg-type]


def test_its_parts_are_layers_by_their_names_and_the_network_is_the_plain_loops() -> None:
    model = model_of()
    assert model.names == NAMES
    network, (tokens, _) = Network(), batch(0, range(2))
    value = tokens
    for part in Model.of(network.double(), loss, batch).layers:
        assert isinstance(part, nn.Module)
        value = part(value)
    assert torch.equal(value, network(tokens))


@pytest.mark.parametrize(
    ("cut", "layout", "ranges"),
    [
        (str([NAMES[:1], NAMES[1:]]), Layout(2, 2), [range(1), range(1, 7)]),
        (str([NAMES[:5], NAMES[5:]]), Layout(2, 2), [range(5), range(5, 7)]),
        ("3,4", Layout(2, 2, units_per_stage=2), [range(2), range(2, 3), range(3, 5), range(5, 7)]),
        (
            str([NAMES[:3], NAMES[3:4], NAMES[4:6], NAMES[6:]]),
            Layout(2, 2, 2),
            [range(3), range(3, 4), range(4, 6), range(6, 7)],
        ),
    ],
)
def test_stages_have_the_parts_that_the_cut_names(
    cut: str, layout: Layout, ranges: list[range]
) -> None:
    plan = plan_of(cut, layout, "breadth-first" if layout.loops > 1 else "1f1b")
    plan.check()
    assert plan.cuts == ranges
    assert errors_of(plan).worst < EXACT


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        (str([NAMES[:3], NAMES[4:]]), "has layers.3 where the model's next part is layers.2"),
        (str([NAMES[:3], NAMES[3:-1]]), "ends where the model's next part is output"),
        (str([NAMES, ["loss"]]), "has loss where the model ends"),
        (str([NAMES]), "says 1 stages, and there are 2"),
        (str([NAMES, []]), "stage 1 has 0 layers, which are not 1 units"),
        ("[1", "is not a list with the module names of each stage"),
        ("3,5", "2 stages of 8 layers are not 2 stages of 7"),
    ],
)
def test_a_cut_of_other_names_is_refused(cut: str, reason: str) -> None:
    with pytest.raises(InvalidConfiguration, match=reason):
        _ = plan_of(cut, Layout(2, 2)).cuts


class Residual(Network):
    def forward(self, tokens: Tensor) -> Tensor:
        value = self.tok_embeddings(tokens)
        return self.output(self.norm(value) + value)  # type: ignore[no-any-return]


class Deciding(Network):
    def forward(self, tokens: Tensor) -> Tensor:
        value = self.tok_embeddings(tokens)
        if value.sum() > 0:
            value = self.norm(value)
        return self.output(value)  # type: ignore[no-any-return]


class Decides(nn.LayerNorm):
    def forward(self, value: Tensor) -> Tensor:
        return super().forward(value) if value.abs().max().item() else value


class Inside(Network):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Decides(WIDTH)


class Twice(Network):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.norm(self.norm(self.tok_embeddings(tokens))))  # type: ignore[no-any-return]


class Scaled(Network):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.norm(self.tok_embeddings(tokens))) * 2  # type: ignore[no-any-return]


class Short(Network):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.tok_embeddings(tokens))  # type: ignore[no-any-return]


class Computed(Network):
    def forward(self, tokens: Tensor) -> Tensor:
        value = self.tok_embeddings(tokens)
        return self.layers["0"](value, (self.angles * 2, self.shift), None, scale=1.0)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (Residual, "does not call output with what norm returns"),
        (Twice, "calls norm twice"),
        (Scaled, "does not return what its last part, output, returns"),
        (Short, "has layers.0.inner.linear.weight, which is in none of the parts that it calls"),
        (Computed, "calls layers.0 with another tensor that it has computed"),
        (Residual, r"\(test_modules.py:\d+: return self.output\(self.norm\(value\) \+ value\)"),
        (
            Residual,
            r"give layers that return all that later ones need: Model\(\[...\], loss, batch",
        ),
        (Deciding, r"inputs: it needs the values of a tensor \(test_modules.py:\d+: if value.sum"),
        (Inside, r"does not take a batch's inputs, in norm: it needs the values of a tensor"),
        (lambda: nn.Embedding(WORDS, WIDTH), "calls no part of its own"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 4)), "does not take a batch's inputs"),
    ],
)
def test_a_network_that_does_more_than_call_its_parts_is_refused(network, reason) -> None:
    with pytest.raises(InvalidConfiguration, match=reason) as found:
        model_of(network())
    assert "\n" not in str(found.value)


def test_parts_of_a_sequential_are_its_modules_and_hooks_are_gone() -> None:
    inner = nn.Sequential(Tanh(WIDTH), nn.Sequential(Tanh(WIDTH), Tanh(WIDTH)))
    model = Model.of(inner, mean_square, partial(numbers, WIDTH))
    assert model.names == ["0", "1.0", "1.1"]
    assert not any(module._forward_hooks for module in inner.modules())

"""Models to train: the transformer's parts, the text, the cut, and a user's own models."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from bfpp.command_line import main
from bfpp.executor.model.model import Layer, Model, cut
from bfpp.executor.model.sources import FunctionSource
from bfpp.executor.model.tracing.tracing import trace
from bfpp.executor.model.transformer.corpus import IGNORED, MASK, Text, default_text
from bfpp.executor.model.transformer.transformer import (
    OutputHead,
    Perceptron,
    SelfAttention,
    token_loss,
    transformer,
)
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import EmbeddingStage
from bfpp.schedules import Communication, InvalidConfiguration, Layout, build_graph
from tests.helpers.small_models import SIZES, bytes_of_text, mean_square, numbers, transformer_sizes
from tests.helpers.training_runs import run_locally


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("causal", [True, False])
def test_causal_attention_sees_no_later_token(causal: bool, kv_heads: int) -> None:
    torch.manual_seed(0)
    attention = SelfAttention(transformer_sizes(causal=causal, kv_heads=kv_heads)).double()
    value = torch.randn(2, 8, 16, dtype=torch.float64)
    changed = value.clone()
    changed[:, 5] += 1.0
    difference = (attention(value) - attention(changed)).abs().amax(dim=(0, 2))
    assert (difference[5:] > 0).all()
    assert bool((difference[:5] > 0).any()) is not causal


def test_grouped_queries_are_repeated_heads() -> None:
    torch.manual_seed(0)
    grouped = SelfAttention(transformer_sizes(kv_heads=2)).double()
    repeated = SelfAttention(transformer_sizes(kv_heads=4)).double()
    repeated.load_state_dict(
        {
            name: value if "key_value" not in name else _repeated(value)
            for name, value in grouped.state_dict().items()
        }
    )
    value = torch.randn(2, 8, 16, dtype=torch.float64)
    assert torch.allclose(grouped(value), repeated(value), atol=1e-12, rtol=0)


def _repeated(value: Tensor) -> Tensor:
    """The parameters of 2 heads of keys, then of values, each head's twice."""
    return value.unflatten(0, (2, 2, 4)).repeat_interleave(2, dim=1).flatten(0, 2)


def test_a_gate_multiplies() -> None:
    torch.manual_seed(0)
    plain, gated = Perceptron(transformer_sizes()), Perceptron(transformer_sizes(gated=True))
    value = torch.randn(3, 16)
    assert plain.gate is None
    assert gated.gate is not None
    expected = gated.down(functional.silu(gated.gate(value)) * gated.up(value))
    assert torch.equal(gated(value), expected)
    assert torch.equal(plain(value), plain.down(functional.gelu(plain.up(value))))


@pytest.mark.usefixtures("one_process")
def test_layers_of_the_head_come_before_the_output_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    added = {
        name
        for name, _ in OutputHead(transformer_sizes(head_layers=2)).named_parameters()
        if name not in dict(OutputHead(transformer_sizes()).named_parameters())
    }
    assert added == {
        f"head.{number}.{part}.{name}"
        for number in range(2)
        for part in (0, 2)
        for name in ("weight", "bias")
    }
    model = tmp_path / "bert.toml"
    numbers = {**SIZES, "sequence": 8, "head_layers": 1, "tied_embeddings": "false"}
    del numbers["context"]
    model.write_text("".join(f"{name} = {number}\n" for name, number in numbers.items()))
    line = f"run gpipe --pp 2 --steps 1 --backend local --model {model} --objective masked --verify"
    assert main([*line.split(), "--layers", "2"]) == 0
    assert re.search(r"single-process reference +yes", capsys.readouterr().out)


def test_only_masked_bytes_count() -> None:
    targets = torch.full((2, 8), IGNORED)
    targets[0, 3], targets[1, 6] = 65, 66
    scores = torch.randn(2, 8, 257)
    chosen = torch.stack([scores[0, 3], scores[1, 6]])
    expected = functional.cross_entropy(chosen, torch.tensor([65, 66]))
    assert token_loss(scores, targets) == pytest.approx(float(expected), rel=1e-6)
    scores[0, 0] += 100
    assert token_loss(scores, targets) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize(("name", "value"), [("heads", 3), ("kv_heads", 3)])
def test_heads_must_divide(name: str, value: int) -> None:
    with pytest.raises(InvalidConfiguration, match=f"{name}: 3 must divide"):
        transformer_sizes(**{name: value})


# The text


@given(st.integers(0, 10**6), st.integers(0, 100), st.integers(1, 6), st.integers(0, 6))
def test_a_sample_depends_on_its_number_and_the_step_alone(
    step: int, first: int, count: int, skipped: int
) -> None:
    for batch in (bytes_of_text().next_bytes, bytes_of_text().masked_bytes):
        whole = batch(step, range(first, first + count + skipped))
        part = batch(step, range(first + skipped, first + count + skipped))
        assert all(torch.equal(a[skipped:], b) for a, b in zip(whole, part, strict=True))


def test_steps_samples_and_seeds_differ() -> None:
    inputs, targets = bytes_of_text().next_bytes(0, range(2))
    assert not torch.equal(inputs[0], inputs[1])
    assert not torch.equal(inputs, bytes_of_text().next_bytes(1, range(2))[0])
    assert not torch.equal(inputs, bytes_of_text(seed=6).next_bytes(0, range(2))[0])
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert bytes(inputs[0].tolist()) in default_text()


def test_masked_bytes_are_what_is_to_be_found() -> None:
    inputs, targets = bytes_of_text().masked_bytes(0, range(4))
    masked = inputs == MASK
    assert (masked == (targets != IGNORED)).all()
    assert (masked.sum(dim=1) == 5).all()  # 15 % of 32
    filled = torch.where(masked, targets, inputs)
    assert all(bytes(row.tolist()) in default_text() for row in filled)


def test_a_text_that_is_too_short() -> None:
    with pytest.raises(InvalidConfiguration, match=r"text: has 8 tokens, too few for samples of 8"):
        Text(b"8 bytes.", 8, 0)


# The cut


@given(
    st.integers(1, 30), st.integers(1, 12), st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.sampled_from(EmbeddingStage),
)  # fmt: skip
def test_all_layers_once_and_in_order(
    inner: int, stages: int, attached: tuple[int, int], ends: EmbeddingStage
) -> None:
    layers = inner + sum(attached)
    model = Model([partial(nn.Linear, 2, 2)] * layers, mean_square, numbers, attached)
    own = sum(map(bool, attached)) if ends is EmbeddingStage.OWN else 0
    try:
        ranges = cut(model, stages, ends)
    except InvalidConfiguration:
        assert inner < stages - own or stages <= own
        return
    assert [layer for each in ranges for layer in each] == list(range(layers))
    assert len(ranges) == stages
    before, after = attached
    counted = [len(set(each) & set(range(before, layers - after))) for each in ranges]
    counted = counted[bool(own and before) : stages - bool(own and after)]
    assert max(counted) - min(counted) <= 1
    assert counted == sorted(counted, reverse=True)


# What layers must keep to


def shared() -> list[Layer]:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return [first, second]


class InASet(nn.Module):
    def forward(self, value: Tensor) -> set[Tensor]:
        return {value}


class Counts(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return value.argmax(dim=-1)


REFUSED: dict[str, tuple[list[Layer], str]] = {
    "a set": ([InASet(), nn.Linear(4, 4)], r"layer 0 \(InASet\) returns a set: only tensors can"),
    "sizes": (
        [nn.Linear(4, 5), partial(nn.Linear, 4, 4)],
        r"layer 1 \(Linear\) does not take what the layer before returns, shape \(2, 5\)",
    ),
    "whole numbers": (
        [nn.Sequential(nn.Linear(4, 4), Counts()), nn.Embedding(4, 4)],
        r"layer 0 returns shape \(2,\) in torch.int64 at the end of a stage, through which no",
    ),
    "shared": (shared(), r"layers 0 and 1 share a parameter, and are in stages 0 and 1"),
    "no module": ([lambda: 3, nn.Linear(4, 4)], r"layer 0 is neither a module nor a function"),
    "a plain function": ([torch.tanh, nn.Linear(4, 4)], r"layer 0 cannot be made: "),
}  # type: ignore[dict-item]


@pytest.mark.parametrize("case", REFUSED)
def test_layers_that_cannot_be_trained_are_refused(case: str) -> None:
    layers, message = REFUSED[case]
    model = Model(layers, mean_square, partial(numbers, 4))
    with pytest.raises(InvalidConfiguration, match=message):
        trace(model, cut(model, 2), 2, torch.float32)


def test_an_input_that_is_changed_in_place_is_refused() -> None:
    model = Model([nn.Linear(4, 4), nn.ReLU(inplace=True)], mean_square, partial(numbers, 4))
    plan = Plan(build_graph("gpipe", Layout(2, 2), Communication()), model)
    with pytest.raises(InvalidConfiguration, match=r"change the input of stage 1 in place"):
        run_locally(plan)


@pytest.mark.parametrize(
    ("layer", "draws"),
    [
        (partial(nn.Dropout, 0.5), True),
        (partial(nn.Dropout, 0.0), False),
        (lambda: nn.Dropout(0.5).eval(), False),
        (partial(nn.RReLU), True),
        (partial(nn.TransformerEncoderLayer, 4, 2, 8, 0.1, batch_first=True), True),
        (partial(nn.TransformerEncoderLayer, 4, 2, 8, 0.0, batch_first=True), False),
    ],
)
def test_layers_that_draw_are_found(layer: Callable[[], nn.Module], draws: bool) -> None:
    model = Model([layer], mean_square, partial(numbers, 4))
    assert trace(model, [range(1)], 3, torch.float32).random == ({0} if draws else set())


def test_the_transformer_draws_nothing() -> None:
    for causal in (True, False):
        made = transformer(transformer_sizes(causal=causal, kv_heads=2), bytes_of_text(context=8))
        assert trace(made, cut(made, 3), 2, torch.float32).random == set()


# A model of the user's own

OWN = """
import torch
from torch import nn
from bfpp.executor.model.model import Model

def images(step, samples):
    rows, kinds = [], []
    for sample in samples:
        chance = torch.Generator().manual_seed(100 * step + sample)
        rows.append(torch.randn(1, 8, 8, generator=chance))
        kinds.append(torch.randint(3, (), generator=chance))
    return torch.stack(rows), torch.stack(kinds)

def convolutions(seed):
    layers = [
        nn.Conv2d(1, 4, 3, padding=1),
        nn.Sequential(nn.ReLU(), nn.Dropout(0.2)),
        lambda: nn.Conv2d(4, 4, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        lambda: nn.Linear(256, 3),
    ]
    return Model(layers, nn.functional.cross_entropy, images)

def no_model(seed):
    return seed

def broken(seed):
    return undefined

def misfit(seed):
    return Model([nn.Linear(8, 8), nn.Linear(9, 8)], nn.functional.mse_loss, images)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


@pytest.mark.usefixtures("one_process")
def test_a_model_from_a_file(own: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = f"run breadth-first --pp 2 --loops 3 --dp 2 --backend local --model {own}:convolutions"
    code = main([*words.split(), "--steps=3", "--verify", "--precision=float64", "--json"])
    assert (code, capfd.readouterr().err) == (0, "")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "has no function nothing"),
        ("no_model", "returned int, not a bfpp.executor.model.model.Model"),
        ("broken", "fails with NameError: name 'undefined' is not defined"),
        ("misfit", "layer 1 (Linear) does not take what the layer before returns"),
    ],
)
def test_a_file_without_a_usable_model(
    name: str, message: str, own: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main(["run", "gpipe", "--pp=2", "--model", f"{own}:{name}"])
    errors = capfd.readouterr().err
    assert (code, errors.count("\n")) == (2, 1)
    assert errors.startswith("bfpp run: --model: ")
    assert message in errors


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(InvalidConfiguration, match="there is no Python file"):
        FunctionSource(Path("nowhere.py"), "model").load(0)


def test_modules_that_a_function_makes_are_the_same_everywhere(own: Path) -> None:
    first = FunctionSource(own, "convolutions").load(3)
    torch.rand(5)
    second = FunctionSource(own, "convolutions").load(3)
    assert torch.equal(first.layers[0].weight, second.layers[0].weight)

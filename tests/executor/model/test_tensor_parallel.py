"""Layers that are divided over ranks compute what the plain ones do, and so do their gradients.

In double precision: the ranks are threads here, and gloo processes in one case.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from bfpp.executor.model.model import drawing
from bfpp.executor.model.parallel.exchange import (
    ProcessShards,
    Shards,
    ThreadExchange,
    ThreadShards,
)
from bfpp.executor.model.parallel.layers import (
    by_vocabulary,
    divide,
    divided_loss,
    vocabulary_loss,
)
from bfpp.executor.model.parallel.region import Region
from bfpp.executor.model.transformer.corpus import IGNORED
from bfpp.executor.model.transformer.transformer import (
    Block,
    Embedding,
    OutputHead,
    TransformerSizes,
    token_loss,
)
from bfpp.executor.processes import ProcessContext, join, launch
from bfpp.schedules import InvalidConfiguration

pytestmark = pytest.mark.usefixtures("one_thread")

EXACT = 1e-12

SIZES = {
    "plain": TransformerSizes(2, 16, 4, 8, 12, 32, 4),
    "grouped, gated, not causal": TransformerSizes(
        2, 16, 8, 8, 12, 32, 4, causal=False, gated=True
    ),
    "as Qwen 3": TransformerSizes(
        2,
        16,
        8,
        8,
        12,
        32,
        4,
        gated=True,
        norm="rms",
        positions="rotary",
        biases=False,
        query_biases=False,
        norms_queries=True,
    ),
}


Values = dict[str, Tensor]


def layers_of(sizes: TransformerSizes) -> nn.Sequential:
    with drawing(3):
        made = [Embedding(sizes), *(Block(sizes) for _ in range(sizes.layers)), OutputHead(sizes)]
    if sizes.gated:
        for block in made[1:-1]:
            block.mlp_norm = nn.RMSNorm(sizes.hidden, 1e-5)
    return nn.Sequential(*made).double()


def batches(sizes: TransformerSizes) -> list[tuple[Tensor, Tensor]]:
    """Two micro-batches, of which some targets do not count."""
    chance = torch.Generator().manual_seed(5)
    shape = (2, sizes.context)
    drawn = [torch.randint(sizes.vocabulary, shape, generator=chance) for _ in range(4)]
    drawn[1][0, :3] = IGNORED
    return [(drawn[0], drawn[1]), (drawn[2], drawn[3])]


def trained(
    model: nn.Module, sizes: TransformerSizes, loss: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Values, Values]:
    """Losses and values of the parameters, and their gradients."""
    losses = {}
    for number, (tokens, targets) in enumerate(batches(sizes)):
        found = loss(model(tokens), targets)
        found.backward()
        losses[f"loss {number}"] = found.detach()
    named = dict(model.named_parameters())
    gradients = {name: each.grad for name, each in named.items() if each.grad is not None}
    assert gradients.keys() == named.keys()
    return losses | {name: each.detach() for name, each in named.items()}, gradients


def divided(sizes: TransformerSizes, shards: Shards, sequence: bool) -> tuple[Values, Values]:
    region = Region(shards, sequence)
    model = nn.Sequential(*(divide(layer, region) for layer in layers_of(sizes)))
    return trained(model, sizes, divided_loss(token_loss, region))


def require_same(name: str, whole: Tensor, parts: list[Tensor]) -> None:
    """Check that parts are all of the whole each, or a part each, in order."""
    if parts[0].shape == whole.shape:
        assert all(torch.allclose(part, whole, rtol=0, atol=EXACT) for part in parts), name
        return
    (dim,) = [dim for dim, size in enumerate(whole.shape) if size != parts[0].shape[dim]]
    if "key_value" in name:  # two blocks, each of which is divided
        parts = [part.unflatten(0, (2, -1)) for part in parts]
        whole, dim = whole.unflatten(0, (2, -1)), 1
    assert torch.allclose(torch.cat(parts, dim), whole, rtol=0, atol=EXACT), name


def require_plain(sizes: TransformerSizes, found: list[tuple[Values, Values]]) -> None:
    for whole, parts in zip(
        trained(layers_of(sizes), sizes, token_loss), zip(*found, strict=True), strict=True
    ):
        assert all(part.keys() == whole.keys() for part in parts)
        for name, value in whole.items():
            require_same(name, value, [part[name] for part in parts])


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("case", SIZES)
def test_divided_layers_compute_what_plain_ones_do(case: str, size: int, sequence: bool) -> None:
    meeting = ThreadExchange(size)
    with ThreadPoolExecutor(size) as pool:
        found = pool.map(
            lambda rank: divided(SIZES[case], ThreadShards(meeting, rank), sequence), range(size)
        )
        require_plain(SIZES[case], list(found))


def in_a_process(
    context: ProcessContext, sizes: TransformerSizes
) -> list[list[tuple[Values, Values]]] | None:
    """Without and with sequence parallelism, as process 0 knows all ranks' values."""
    join(context)
    torch.set_num_threads(1)
    found = []
    for sequence in (False, True):
        own = divided(sizes, ProcessShards(), sequence)
        parts: list[tuple[Values, Values] | None] = [None] * context.processes
        torch.distributed.all_gather_object(parts, own)
        found.append([part for part in parts if part is not None])
    return found if context.is_first else None


@pytest.mark.slow
def test_divided_layers_in_processes() -> None:
    found = launch(in_a_process, SIZES["plain"], 2)
    assert found is not None
    for each in found:
        require_plain(SIZES["plain"], each)


@pytest.mark.parametrize("shift", [0.0, 600.0, -600.0])
def test_the_loss_of_divided_scores_is_finite_wherever_they_are(shift: float) -> None:
    """In single precision, exp(600) is none."""
    scores = torch.tensor([[[3.0, -2.0, 1.0, 0.5], [-1.0, 0.25, 2.0, 2.5]]]) + shift
    targets = torch.tensor([[1, 2]])
    expected = functional.cross_entropy(scores[0].double(), targets[0])
    meeting = ThreadExchange(2)

    def loss(rank: int) -> Tensor:
        own = scores[..., 2 * rank : 2 * rank + 2]
        return vocabulary_loss(own, targets, Region(ThreadShards(meeting, rank)))

    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(loss, range(2)):
            assert found.item() == pytest.approx(expected.item(), rel=1e-4)


def test_what_is_not_summed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Region, "own", lambda *given: given[-1])
    with pytest.raises(AssertionError, match=r"norm|bias"):
        test_divided_layers_compute_what_plain_ones_do("plain", 2, sequence=True)


def test_what_cannot_be_divided_is_refused() -> None:
    region = Region(ThreadShards(ThreadExchange(3), 0))
    with pytest.raises(InvalidConfiguration, match="3 must divide heads of keys and values: 4"):
        divide(Block(SIZES["plain"]), region)
    with pytest.raises(InvalidConfiguration, match="the layers of a head take all places"):
        divide(
            OutputHead(replace(SIZES["plain"], head_layers=1)),
            replace(region, is_sequence_parallel=True),
        )


@pytest.mark.parametrize(
    ("tokens", "ranks", "parts"),
    [
        (4, 4, [1, 1, 1, 1]),
        (5, 3, [2, 2, 1]),
        (8, 3, [3, 3, 2]),
        (3, 4, None),
        (4, 3, None),  # two ranks have two each
        (9, 4, None),  # three ranks have three each
    ],
)
def test_tokens_are_divided_while_each_rank_has_some(
    tokens: int, ranks: int, parts: list[int] | None
) -> None:
    def part(rank: int) -> int:
        whole = nn.Embedding(tokens, 2)
        by_vocabulary(whole, Region(ThreadShards(ThreadExchange(ranks), rank)))
        return len(whole.weight)

    if parts is None:
        with pytest.raises(InvalidConfiguration, match=f"{ranks} ranks cannot divide {tokens}"):
            part(0)
    else:
        assert [*map(part, range(ranks))] == parts

"""Small models: a chain of any length, whose ends may share a matrix."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.helpers.faulty_models import mean_square
from bfpp.executor.model.model import Model
from bfpp.executor.model.transformer.corpus import Text, default_text
from bfpp.executor.model.transformer.transformer import TransformerSizes


class Tanh(nn.Module):
    """A layer with two parameters and no more than it needs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, value: Tensor) -> Tensor:
        result: Tensor = torch.tanh(self.linear(value))
        return result


class Averaged(Tanh):
    """A layer with buffers that its passes change: in place, and by another tensor."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))
        self.register_buffer("was_large", torch.zeros(width, dtype=torch.bool), persistent=False)

    def forward(self, value: Tensor) -> Tensor:
        result = super().forward(value)
        now = result.detach().mean(dim=0)
        self.mean = 0.9 * self.mean + 0.1 * now
        self.passes += 1
        self.was_large |= now > 0.2
        factor = 1 + 0.01 * self.passes.to(value.dtype) + 0.1 * self.was_large
        return (result - self.mean) * factor.to(value.dtype)


def numbers(width: int, step: int, samples: range) -> tuple[Tensor, Tensor]:
    """Random inputs and targets of these samples, by the step and the sample alone."""
    rows = []
    for sample in samples:
        chance = torch.Generator().manual_seed(1000 * step + sample)
        rows.append(torch.randn(2, width, generator=chance, dtype=torch.float64))
    inputs, targets = torch.stack(rows).unbind(dim=1)
    return inputs, targets


def chain(layers: int, width: int = 4, make: Callable[[int], nn.Module] = Tanh) -> Model:
    """The same small layer again and again."""
    return Model([partial(make, width)] * layers, mean_square, partial(numbers, width))


class Scores(nn.Module):
    """A last layer: a bias of its own, and a matrix that may be another layer's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(width, width))
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, value: Tensor) -> Tensor:
        return functional.linear(value, self.matrix) + self.bias.sum()


def tied_chain(layers: int, width: int = 4) -> Model:
    """A chain whose last layer has the first one's matrix."""
    return Model(
        [*[partial(Tanh, width)] * (layers - 1), partial(Scores, width)],
        mean_square,
        partial(numbers, width),
        tied={f"{layers - 1}.matrix": "0.linear.weight"},
    )


SIZES = {"layers": 3, "hidden": 16, "heads": 4, "context": 8, "vocabulary": 257, "mlp": 24}


def transformer_sizes(**others: int) -> TransformerSizes:
    return TransformerSizes(**{**SIZES, "kv_heads": 4, **others})


def bytes_of_text(**changes: int) -> Text:
    return Text(default_text(), **{"context": 32, "seed": 5} | changes)


def dropout(width: int) -> nn.Module:
    return nn.Sequential(Tanh(width), nn.Dropout(0.4))

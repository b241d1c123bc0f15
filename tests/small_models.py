"""Small models: a chain of any length, whose ends may share a matrix."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.faulty_models import mean_square
from bfpp.executor.model import Model


class Tanh(nn.Module):
    """A layer with two parameters and no more than it needs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, value: Tensor) -> Tensor:
        result: Tensor = torch.tanh(self.linear(value))
        return result


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

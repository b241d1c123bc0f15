"""Small models: a chain of any length."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

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

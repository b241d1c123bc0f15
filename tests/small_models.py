"""Small models: a chain of any length, and one that a command can name.

`bfpp run --model` is given this file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from bfpp.executor.model import Model

WIDTH = 6


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


def mean_square(output: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(output, targets.to(output.dtype))


def chain(layers: int, width: int = 4, make: Callable[[int], nn.Module] = Tanh) -> Model:
    """The same small layer again and again."""
    return Model([partial(make, width)] * layers, mean_square, partial(numbers, width))


def regression(seed: int) -> Model:
    """Eight layers that learn a sum; in double precision if that is the run's."""

    def batch(step: int, samples: range) -> tuple[torch.Tensor, torch.Tensor]:
        chance = torch.Generator().manual_seed(seed * 1_000_003 + step)
        inputs = torch.randn(256, WIDTH, generator=chance)[samples.start : samples.stop]
        return inputs, inputs.sum(dim=1, keepdim=True)

    def inner() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def outer() -> nn.Module:
        return nn.Linear(WIDTH, 1)

    return Model([*[inner] * 7, outer], nn.functional.mse_loss, batch)


class Broken(nn.Module):
    """A layer that is ill in its third step of four micro-batches, two passes each."""

    def __init__(self, illness: Callable[[], object]) -> None:
        super().__init__()
        self.illness, self.passes = illness, 0
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        if self.passes > 16:
            self.illness()
        return self.linear(value)


def loop() -> None:
    while True:
        pass


def break_down() -> None:
    raise ValueError("the layer broke")


def take_all_memory() -> None:
    torch.empty(2**60, dtype=torch.uint8)


def with_fifth(seed: int, layer: Callable[[], nn.Module]) -> Model:
    """The model with another fifth layer."""
    model = regression(seed)
    return replace(model, layers=[*model.layers[:4], layer, *model.layers[5:]])


def hanging(seed: int) -> Model:
    return with_fifth(seed, lambda: Broken(loop))


def raising(seed: int) -> Model:
    return with_fifth(seed, lambda: Broken(break_down))


def leaving(seed: int) -> Model:
    return with_fifth(seed, lambda: Broken(lambda: os._exit(0)))


def greedy(seed: int) -> Model:
    return with_fifth(seed, lambda: Broken(take_all_memory))


def waiting(seed: int) -> Model:
    """A model whose first step begins and does not end for long."""
    model = regression(seed)

    def batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
        if samples.start:  # not the micro-batch that the processes compare before they begin
            time.sleep(600)
        return model.batch(step, samples)

    return replace(model, batch=batch)

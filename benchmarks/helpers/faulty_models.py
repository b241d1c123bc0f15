"""A small model that learns a sum, and the same with something wrong in its third step.

`bfpp run --model` is given this file. What is wrong is no parameter: what one of
these models has saved, any of them goes on from.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from bfpp.executor.model.model import Model

WIDTH = 6
ILL_AT = 2
"""The step."""


def regression(seed: int) -> Model:
    """Eight layers that learn a sum; in double precision if that is the run's."""
    return of_width(WIDTH, seed)


def wider(seed: int) -> Model:
    """Another model."""
    return of_width(2 * WIDTH, seed)


def of_width(width: int, seed: int) -> Model:
    def batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
        chance = torch.Generator().manual_seed(seed * 1_000_003 + step)
        inputs = torch.randn(256, width, generator=chance)[samples.start : samples.stop]
        return inputs, inputs.sum(dim=1, keepdim=True)

    def inner() -> nn.Module:
        return nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def outer() -> nn.Module:
        return nn.Linear(width, 1)

    return Model([*[inner] * 7, outer], mean_square, batch)


def mean_square(output: Tensor, targets: Tensor) -> Tensor:
    """The mean, in the precision of the output."""
    return nn.functional.mse_loss(output, targets.to(output.dtype))


class Ill(nn.Sequential):
    """An inner layer to which something happens."""

    def __init__(self, illness: Callable[[], object]) -> None:
        super().__init__(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.illness = illness

    def forward(self, value: Tensor) -> Tensor:
        self.illness()
        result: Tensor = super().forward(value)
        return result


def loop() -> None:
    while True:
        pass


def break_down() -> None:
    raise ValueError("the layer broke")


def take_all_memory() -> None:
    torch.empty(2**60, dtype=torch.uint8)


def with_fifth(seed: int, illness: Callable[[], object]) -> Model:
    """The model with an ill fifth layer, on the rank that reads the batches of the steps."""
    model, begun = regression(seed), [0]

    def batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
        begun.append(step)
        return model.batch(step, samples)

    def ill() -> None:
        if begun[-1] >= ILL_AT:
            illness()

    return replace(
        model, layers=[*model.layers[:4], lambda: Ill(ill), *model.layers[5:]], batch=batch
    )


def hanging(seed: int) -> Model:
    return with_fifth(seed, loop)


def raising(seed: int) -> Model:
    return with_fifth(seed, break_down)


def leaving(seed: int) -> Model:
    return with_fifth(seed, lambda: os._exit(0))


def greedy(seed: int) -> Model:
    return with_fifth(seed, take_all_memory)


def diverging(seed: int) -> Model:
    """A model whose loss is no number."""
    model = regression(seed)

    def batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
        inputs, targets = model.batch(step, samples)
        return inputs, targets * math.nan if step == ILL_AT else targets

    return replace(model, batch=batch)


def waiting(seed: int) -> Model:
    """A model whose first step begins and does not end for long."""
    model = regression(seed)

    def batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
        if samples.start:  # not the micro-batch that the processes compare before they begin
            time.sleep(600)
        return model.batch(step, samples)

    return replace(model, batch=batch)

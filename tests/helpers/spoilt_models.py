"""Models with losses and gradients that are no numbers, in chosen steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bfpp.executor.model.model import Model
from bfpp.executor.plan.plan import Plan
from tests.helpers.small_models import Tanh, numbers

WIDTH = 4

LARGE = 1e3


class Steep(torch.autograd.Function):
    """The identity, whose gradient is infinite where it is told to be."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, is_steep: Tensor) -> Tensor:
        ctx.save_for_backward(is_steep)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (is_steep,) = ctx.saved_tensors
        return torch.where(is_steep, math.inf, gradients[0]), None


class Cliff(nn.Module):
    """A layer with infinite gradients where its input is large."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(WIDTH, WIDTH), Tanh(WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        is_large = value.detach().abs().amax(dim=1, keepdim=True) > LARGE / 2
        value = torch.tanh(self.before(value.clamp(-3, 3)))
        result: Tensor = self.after(Steep.apply(value, is_large))
        return result


def masked_mean_square(output: Tensor, targets: Tensor) -> Tensor:
    """The mean over the targets that are numbers: none at all has no mean, and no gradient."""
    is_told = ~targets.isnan()
    count = is_told.sum()
    total = ((output - targets.nan_to_num()) * is_told).square().sum()
    return torch.where(count > 0, total / count.clamp(min=1), math.nan)


# What is wrong with a micro-batch: its inputs and targets, and what is told of it.

Spoil = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
WRONG: dict[str, Spoil] = {
    "loss": lambda inputs, targets: (inputs, targets * math.inf),
    "loss without gradients": lambda inputs, targets: (inputs, targets * math.nan),
    "gradient": lambda inputs, targets: (inputs + LARGE, targets),
}


@dataclass(frozen=True)
class Spoilt:
    """Numbers, some micro-batches of which are spoilt: by step, the first sample and how."""

    wrong: Mapping[int, tuple[int, str]]

    def __call__(self, step: int, samples: range) -> tuple[Tensor, Tensor]:
        inputs, targets = numbers(WIDTH, step, samples)
        sample, how = self.wrong.get(step, (-1, ""))
        return WRONG[how](inputs, targets) if sample in samples else (inputs, targets)


def model_of(layers: int, wrong: Mapping[int, tuple[int, str]]) -> Model:
    """A chain of layers, the first of which is steep."""
    return Model([Cliff, *[partial(Tanh, WIDTH)] * (layers - 1)], masked_mean_square, Spoilt(wrong))


def without_targets(plan: Plan) -> Plan:
    """A plan whose targets are no numbers after the first step."""
    batch = plan.model.batch

    def spoilt(step: int, samples: range) -> tuple[Tensor, Tensor]:
        inputs, targets = batch(step, samples)
        return inputs, targets * math.nan if step else targets

    return replace(plan, model=replace(plan.model, batch=spoilt))


@dataclass(frozen=True)
class SpoiltSource:
    """A factory of such a model for another process."""

    layers: int
    wrong: Mapping[int, tuple[int, str]]

    def load(self, seed: int) -> Model:
        del seed
        return model_of(self.layers, self.wrong)

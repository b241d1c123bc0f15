"""A loader with torchdata's protocol, which shuffles with a generator of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from bfpp.executor.model.batches import StatefulBatches
from bfpp.executor.model.model import Model

SAMPLES, BATCH, WIDTH = 40, 8, 4


class Shuffled:
    """Shuffled batches, epoch after epoch, with noise of the same generator."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.data = torch.linspace(-1, 1, SAMPLES * WIDTH, dtype=torch.float64).view(-1, WIDTH)
        self.order: list[int] = []

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.order = self.order or torch.randperm(SAMPLES, generator=self.generator).tolist()
        while self.order:
            inputs = self.data[self.order[:BATCH]]
            self.order = self.order[BATCH:]
            noise = torch.randn(inputs.shape, generator=self.generator, dtype=torch.float64)
            yield inputs + noise / 8, inputs.flip(1)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state(), "order": [*self.order]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.generator.set_state(state_dict["generator"])
        self.order = [*state_dict["order"]]


def stateful(seed: int) -> Model:  # noqa: ARG001
    """A chain of layers that learns from such a loader."""
    layers = [lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())] * 4
    return Model(layers, mse_loss, StatefulBatches(Shuffled()))


def stateless(seed: int) -> Model:
    """The same layers, with batches of zeros."""

    def zeros(step: int, samples: range) -> tuple[Tensor, Tensor]:  # noqa: ARG001
        return torch.zeros(len(samples), WIDTH), torch.zeros(len(samples), WIDTH)

    return Model(stateful(seed).layers, mse_loss, zeros)

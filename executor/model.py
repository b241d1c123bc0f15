"""What is trained: layers called one after another, a loss, and the data.

A `Model` is all that the executor knows of a network. Each layer takes the one
tensor that the layer before returned; the first takes the inputs. A layer is a
module, or a function that makes one: only the layers of a rank's own stages are
made on it, each from a seed of its own, so that the weights do not depend on
how the model is cut. Layers must compute the same again when they are run again
on the same input, and share no parameters over stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from executor.settings import Ends
from schedules import InvalidConfiguration
from schedules.cut import cut_layers

Layer = nn.Module | Callable[[], nn.Module]


@dataclass(frozen=True)
class Model:
    """A network in layers.

    `loss(output, targets)` is the mean over a micro-batch, a scalar.
    `batch(step, samples)` returns the inputs and targets of those samples of
    that step's batch, the same on every rank that asks. `attached` is how many
    layers at the start and at the end (embedding, output) are not counted when
    the others are divided over stages.
    """

    layers: Sequence[Layer]
    loss: Callable[[Tensor, Tensor], Tensor]
    batch: Callable[[int, range], tuple[Tensor, Tensor]]
    attached: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Shape:
    """What a stage hands on for one micro-batch."""

    size: tuple[int, ...]
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        """How many numbers that is."""
        return torch.Size(self.size).numel()


def cut(model: Model, stages: int, ends: Ends = Ends.ATTACHED) -> list[range]:
    """The layers of each stage; raises `InvalidConfiguration` if one would have none."""
    return cut_layers(len(model.layers), stages, model.attached, own_ends=ends is Ends.OWN)


def build(layer: Layer, number: int, seed: int) -> nn.Module:
    """The module of a layer, made with random numbers of its own."""
    if isinstance(layer, nn.Module):
        return layer
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed * 1_000_003 + number)
        return layer()


def stage_shapes(
    model: Model, cuts: Sequence[range], microbatch_size: int, dtype: torch.dtype
) -> list[Shape]:
    """What each stage hands on, found without computing.

    Raises `InvalidConfiguration` if a layer cannot run on shapes alone.
    """
    inputs, _ = model.batch(0, range(microbatch_size))
    value = inputs.to(device="meta", dtype=dtype if inputs.is_floating_point() else None)
    shapes = []
    with torch.device("meta"), torch.no_grad():
        for layers in cuts:
            for number in layers:
                value = _run_on_meta(model.layers[number], number, value, dtype)
            shapes.append(Shape(tuple(value.shape), value.dtype))
    return shapes


def _run_on_meta(layer: Layer, number: int, value: Tensor, dtype: torch.dtype) -> Tensor:
    module = deepcopy(layer) if isinstance(layer, nn.Module) else layer()
    module = module.to(device="meta", dtype=dtype)
    try:
        result = module(value)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        raise InvalidConfiguration(
            "model",
            f"layer {number} ({type(module).__name__}) does not take what the layer before "
            f"returns, {tuple(value.shape)}: {error}",
        ) from None
    if not isinstance(result, Tensor):
        raise InvalidConfiguration(
            "model",
            f"layer {number} ({type(module).__name__}) returns {type(result).__name__}, not one "
            "tensor",
        )
    return result

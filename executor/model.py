"""What is trained: layers called one after another, a loss, and the data.

A `Model` is all that the executor knows of a network. Each layer takes the one
tensor that the layer before returned; the first takes the inputs. A layer is a
module, or a function that makes one: only the layers of a rank's own stages are
made on it, each from a seed of its own, so that the weights do not depend on
how the model is cut. A module is copied: training leaves the given one as it is.

What layers must keep to:

- They compute the same again when they are run again on the same input. What
  they draw from torch's own generator (dropout, say) is drawn again too: before
  each forward pass, a layer that was seen to draw gets a seed of the run's seed,
  the step, the micro-batch and its own number, so that its numbers depend
  neither on the cut nor on the schedule. They do depend on the kind of device.
- They share no parameters over stages, and train all that they have: what is
  not trained is a buffer. Buffers are no part of a checkpoint.
- They do not change their input in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from executor.settings import Ends
from schedules import InvalidConfiguration
from schedules.cut import cut_layers

Layer = nn.Module | Callable[[], nn.Module]

GENERATOR = RLock()
"""Whose turn it is to draw: the threads of a process share torch's generator."""


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


@contextmanager
def drawing(*of: int) -> Iterator[None]:
    """Random numbers that depend on these numbers alone; one thread at a time draws them."""
    seed = int.from_bytes(sha256(repr(of).encode()).digest()[:7])
    with GENERATOR, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def build(model: Model, layers: Iterable[int], seed: int) -> dict[int, nn.Module]:
    """The modules of some layers, each made with random numbers of its own.

    Those that share a parameter share it still.
    """
    copied: dict[int, Any] = {}
    made = {}
    for number in layers:
        with drawing(seed, number):
            made[number] = _make(model.layers[number], number, copied)
    return made


def _make(layer: Layer, number: int, copied: dict[int, Any]) -> nn.Module:
    if isinstance(layer, nn.Module):
        return deepcopy(layer, copied)
    try:
        module: object = layer()
    except TypeError as error:
        raise InvalidConfiguration("model", f"layer {number} cannot be made: {error}") from error
    if not isinstance(module, nn.Module):
        raise InvalidConfiguration(
            "model", f"layer {number} is neither a module nor a function that makes one"
        )
    return module


@dataclass(frozen=True)
class Traced:
    """What stages hand on, and the layers that draw random numbers: found without computing."""

    shapes: list[Shape]
    random: frozenset[int]


def trace(model: Model, cuts: Sequence[range], microbatch_size: int, dtype: torch.dtype) -> Traced:
    """Run the layers on shapes alone.

    Raises `InvalidConfiguration` for a layer that cannot be run so, or that
    breaks a rule of this module.
    """
    _require_own_parameters(model, cuts)
    inputs, _ = model.batch(0, range(microbatch_size))
    value = inputs.to(device="meta", dtype=dtype if inputs.is_floating_point() else None)
    shapes: list[Shape] = []
    random = set()
    with torch.device("meta"), torch.no_grad():
        for layers in cuts:
            for number in layers:
                value, draws = _run_on_meta(model.layers[number], number, value, dtype)
                random |= {number} if draws else set()
            if not value.is_floating_point() and len(shapes) < len(cuts) - 1:
                raise InvalidConfiguration(
                    "model",
                    f"layer {layers[-1]} returns {value.dtype} at the end of a stage, through "
                    "which no gradient can come back",
                )
            shapes.append(Shape(tuple(value.shape), value.dtype))
    return Traced(shapes, frozenset(random))


def _require_own_parameters(model: Model, cuts: Sequence[range]) -> None:
    """Raise `InvalidConfiguration` where stages share a parameter."""
    found: dict[int, tuple[int, int]] = {}
    for stage, layers in enumerate(cuts):
        for number in layers:
            layer = model.layers[number]
            for parameter in layer.parameters() if isinstance(layer, nn.Module) else ():
                first, other = found.setdefault(id(parameter), (stage, number))
                if first != stage:
                    raise InvalidConfiguration(
                        "model",
                        f"layers {other} and {number} share a parameter, and are in stages "
                        f"{first} and {stage}",
                    )


class _Draws(TorchDispatchMode):
    """Sees whether random numbers are drawn."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.found = self.found or torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


def _run_on_meta(
    layer: Layer, number: int, value: Tensor, dtype: torch.dtype
) -> tuple[Tensor, bool]:
    """What a layer returns, and whether it drew random numbers."""
    module = _make(layer, number, {}).to(device="meta", dtype=dtype)
    name = f"layer {number} ({type(module).__name__})"
    for key, parameter in module.named_parameters():
        if not parameter.requires_grad:
            raise InvalidConfiguration(
                "model", f"{name} does not train its parameter {key}: make it a buffer"
            )
    draws = _Draws()
    try:
        with draws:
            result: object = module(value)
    except Exception as error:
        raise InvalidConfiguration(
            "model",
            f"{name} does not take what the layer before returns, {tuple(value.shape)}: {error}",
        ) from error
    if not isinstance(result, Tensor):
        raise InvalidConfiguration(
            "model", f"{name} returns {type(result).__name__}, not one tensor"
        )
    return result, draws.found

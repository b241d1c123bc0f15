"""Optimizers, learning rates, and how each parameter is updated.

Any of torch's, or of a user's, whose update is element-wise: a rank updates flat
shares, which are cut anywhere, so that an element's update must not depend on its
neighbours, nor on the shape of its parameter. That is tried, not looked up. Muon, which
needs whole matrices, is an exception (`bfpp.executor.optimizer.muon`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bfpp.executor.devices.uncompiled import uncompiled
from bfpp.executor.optimizer.muon import of_others, require_muon
from bfpp.executor.settings import LearningRates, Optimization
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.formats.python_file import MARK, named_in

VECTORS = "vectors"
"""Stands for all parameters with fewer than two dimensions: norms and biases."""

TRIED = 4096
"""Elements of a parameter that is updated to measure what an optimizer keeps and takes for each."""

FUSED = ("adam", "adamw")
"""Optimizers of torch that update in one kernel for all parameters, which allocates nothing.

They also leave a step out, and do not count it, without asking the host.
"""

PLACES = {"cpu", "cuda"}
"""Devices that have such a kernel; the meta device has none."""

HOW = ("fused", "foreach", "differentiable")
"""Arguments that say how such an optimizer updates: if one of them is given, it decides."""

SAID = {"lr": "--learning-rate", "weight_decay": "--weight-decay"}
"""Arguments of optimizers that options of their own say."""

Group = dict[str, Any]


def make_optimizer(options: Optimization, groups: Sequence[Group]) -> torch.optim.Optimizer:
    """The optimizer of some parameters in groups, each with its `weight_decay`.

    With Muon, that of all but matrices.
    """
    options = of_others(options)
    arguments = dict(options.arguments)
    places = {each.device.type for group in groups for each in group["params"]}
    if options.optimizer.lower() in FUSED and places <= PLACES and not arguments.keys() & HOW:
        arguments["fused"] = True
    factory = _factory(options.optimizer)
    try:
        with uncompiled():
            made = factory([*groups], lr=options.learning_rate, **arguments)
    except (TypeError, ValueError) as error:
        raise InvalidConfiguration("optimizer", f"{options.optimizer}: {error}") from error
    if not isinstance(made, torch.optim.Optimizer):
        raise InvalidConfiguration("optimizer", f"{options.optimizer} is not a torch optimizer")
    return made


@uncompiled()
def update(optimizer: torch.optim.Optimizer) -> None:
    """Update the parameters by their gradients."""
    optimizer.step()


def _factory(name: str) -> Callable[..., Any]:
    """A class of torch.optim by its name in any letters, or a function in a file."""
    known = {key.lower(): value for key, value in vars(torch.optim).items()}
    factory: object = known.get(name.lower())
    if MARK in name:
        factory = _named_in_file("optimizer", name)
    if not callable(factory):
        raise InvalidConfiguration(
            "optimizer", f"{name} is neither an optimizer of torch.optim nor FILE.py:FUNCTION"
        )
    return factory


def _named_in_file(field: str, source: str) -> object:
    stem, _, name = source.rpartition(MARK)
    return named_in(field, Path(f"{stem}.py"), name)


# Element by element


def require_elementwise(options: Optimization) -> None:
    """Raise `InvalidConfiguration` unless an optimizer updates shares as it would the whole.

    Two parameters are updated for some steps, and all their elements in one.
    """
    _require_own_arguments(options)
    if options.is_muon:
        require_muon(options)
    chance = torch.Generator().manual_seed(0)
    values = [torch.randn(shape, generator=chance).double() for shape in ((4, 6), (5,))]
    gradients = [[torch.randn_like(each) for each in values] for _ in range(3)]
    try:
        apart = _updated(options, values, gradients)
        joined = _updated(options, [_join(values)], [[_join(each)] for each in gradients])
    except InvalidConfiguration:
        raise
    except Exception as error:  # whatever an optimizer raises
        raise InvalidConfiguration(
            "optimizer", f"{options.optimizer} cannot update a flat buffer: {error}"
        ) from error
    if not torch.allclose(_join(apart), joined[0], rtol=1e-9, atol=1e-12):
        raise InvalidConfiguration(
            "optimizer",
            f"{options.optimizer} is not element-wise, as sharded flat buffers require",
        )


def _require_own_arguments(options: Optimization) -> None:
    """Refuse arguments that options of their own say, of all of an optimizer's parameters."""
    given = {name for each in (options, of_others(options)) for name, _ in each.arguments}
    for name, option in SAID.items():
        if name in given:
            raise InvalidConfiguration("optimizer", f"{name} is for {option} to say")


def _join(values: Sequence[Tensor]) -> Tensor:
    return torch.cat([each.flatten() for each in values])


def _updated(
    options: Optimization, values: Sequence[Tensor], gradients: Sequence[Sequence[Tensor]]
) -> list[Tensor]:
    parameters = [nn.Parameter(each.clone()) for each in values]
    groups = [{"params": parameters, "weight_decay": options.weight_decay}]
    optimizer = make_optimizer(options, groups)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        update(optimizer)
    kept = [value for each in optimizer.state.values() for value in each.values()]
    if not all(isinstance(value, Tensor) for value in kept):
        raise InvalidConfiguration(
            "optimizer", f"{options.optimizer} keeps state that is not a tensor and cannot be saved"
        )
    return [parameter.detach() for parameter in parameters]


def trial(options: Optimization, dtype: torch.dtype) -> torch.optim.Optimizer:
    """The optimizer of a small parameter of this precision, which it has updated."""
    parameter = nn.Parameter(torch.zeros(TRIED, dtype=dtype))
    parameter.grad = torch.zeros_like(parameter)
    groups = [{"params": [parameter], "weight_decay": options.weight_decay}]
    optimizer = make_optimizer(options, groups)
    update(optimizer)
    return optimizer


def moment_bytes(options: Optimization, dtype: torch.dtype) -> float:
    """Bytes that the optimizer keeps for each element of this precision."""
    states = trial(options, dtype).state.values()
    kept: list[Tensor] = [value for each in states for value in each.values()]
    return sum(value.nbytes for value in kept if value.dim()) / TRIED


def decay_of(options: Optimization, name: str, shape: torch.Size) -> float:
    """The weight decay of a parameter."""
    is_vector = VECTORS in options.no_decay and len(shape) < 2
    is_named = any(fnmatchcase(name, pattern) for pattern in options.no_decay)
    return 0.0 if is_vector or is_named else options.weight_decay


# Learning rates


def rate_of(rates: LearningRates, step: int) -> float:
    """The share of the learning rate that a step has: it rises over the warm-up, then decays."""
    if MARK in rates.shape:
        return _own_rate(rates.shape)(step)
    if step < rates.warmup:
        return (step + 1) / rates.warmup
    done = min((step - rates.warmup) / max(rates.steps - rates.warmup, 1), 1.0)
    return rates.final + (1 - rates.final) * SHAPES[rates.shape](done)


SHAPES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}
"""Share of the learning rate left, by the share of the decay that is done."""


@cache
def _own_rate(source: str) -> Callable[[int], float]:
    rate = _named_in_file("lr_schedule", source)
    if not callable(rate):
        raise InvalidConfiguration("lr_schedule", f"there is no function {source}")
    return rate


def require_rates(rates: LearningRates) -> None:
    """Raise `InvalidConfiguration` for rates that cannot be."""
    if MARK not in rates.shape and rates.shape not in SHAPES:
        raise InvalidConfiguration(
            "lr_schedule",
            f"{rates.shape} is neither one of {', '.join(SHAPES)} nor FILE.py:FUNCTION",
        )
    first = rate_of(rates, 0)
    if not isinstance(first, float | int) or not math.isfinite(first):
        raise InvalidConfiguration("lr_schedule", f"{rates.shape} gives {first!r} for step 0")

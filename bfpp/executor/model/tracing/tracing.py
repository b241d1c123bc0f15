"""Trace a model on the meta device: shapes, random draws, shared parameters.

Layers are run on shapes alone (torch's meta device), each in turn, so that no
process makes more than its own. The same walk records which of them share a parameter, and
which functions return a module that somebody keeps (one that they captured, or that
functools.cache remembers). Such a module is copied before anything is done to it. A function
that was first called here would keep a module without values: one that is seen to use
functools.cache is called for real instead, and any other that keeps what it made is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from bfpp.executor.devices.messages import Form, Tree, in_precision
from bfpp.executor.devices.uncompiled import uncompiled
from bfpp.executor.model.batches import tried
from bfpp.executor.model.gradient_check import require_plain_loss
from bfpp.executor.model.model import Layer, Model, compute_in, copy, drawing, make
from bfpp.executor.model.shared_parameters import Owners
from bfpp.executor.model.tracing.originals import Originals, require_independent_loss, watched
from bfpp.executor.model.tracing.pass_effects import Operators, PassEffects, probed
from bfpp.executor.model.user_errors import reason_of
from bfpp.schedules import InvalidConfiguration


@dataclass(frozen=True)
class Traced:
    """The trace of a model: forms of inputs and of units' outputs, properties of layers.

    `random` are those that draw random numbers, `kept` those whose functions
    return what is not theirs alone. `shared` are the names of parameters that are
    ones of earlier layers, and theirs. `moving` are the buffers that passes change, by layer;
    `originals` know what passes set of the modules that are traced.
    """

    inputs: Form
    forms: list[Form]
    random: frozenset[int]
    kept: frozenset[int]
    shared: Mapping[str, str]
    moving: Mapping[int, frozenset[str]]
    originals: Originals


@uncompiled()
def trace(
    model: Model,
    cuts: Sequence[range],
    microbatch_size: int,
    dtype: torch.dtype,
    seed: int = 0,
    step: int = 0,
    keeps_float32: Sequence[str] = (),
    *,
    ties_ends: bool = False,
) -> Traced:
    """Run the layers on the shapes of a step's micro-batch alone.

    Raises `InvalidConfiguration` for a layer that cannot be run so, or that
    breaks a rule of `bfpp.executor.model.model`. The first and the last stage may share
    parameters if the graph `ties_ends`.
    """
    require_plain_loss(model)
    inputs, targets = tried(model, step, range(microbatch_size))
    value = in_precision(inputs, dtype, torch.device("meta"))
    forms: list[Form] = []
    random, kept, moving = set[int](), set[int](), dict[int, frozenset[str]]()
    is_trained = False
    owners, originals = Owners(cuts, ties_ends), Originals()
    for layers in cuts:
        for number in layers:
            module, is_kept = _look_at(model.layers[number], number, seed)
            owners.add(module, number)
            narrow = partial(compute_in, dtype=dtype, keeps_float32=keeps_float32)
            name = f"layer {number} ({type(module).__name__})"
            copied: dict[int, Any] = {}
            own = copy(module, name, copied) if is_kept else module
            _require_trainable(module, name, dtype)
            own = narrow(own.to(device="meta"))
            with watched(originals.elsewhere(copied, layers), name):
                value, passes = _run_on_meta(own, name, value, dtype)
            originals.add(module, number, passes)
            random |= {number} if passes.draws else set()
            moving |= {number: passes.moving} if passes.moving else {}
            kept |= {number} if is_kept else set()
            is_trained |= any(each.requires_grad for each in module.parameters())
        forms.append(form := Form.of(value, f"layer {layers[-1]} returns a"))
        if is_trained and not any(form.has_gradient):
            raise InvalidConfiguration(
                "model",
                f"layer {layers[-1]} returns {form} at the end of a stage, through which no "
                "gradient can flow back",
            )
    for later, earlier in model.tied.items():
        owners.tie(later, earlier)
    require_independent_loss(model.loss, value, targets, originals)
    first = Form.of(inputs, "a batch has a")
    random_ones, kept_ones = frozenset(random), frozenset(kept)
    return Traced(first, forms, random_ones, kept_ones, owners.shared, moving, originals)


# Whose module it is


def _look_at(layer: Layer, number: int, seed: int) -> tuple[nn.Module, bool]:
    """A layer's module, and whether it is kept by somebody else.

    Raises `InvalidConfiguration` if it is kept, and has been made here.
    """
    if isinstance(layer, nn.Module):
        return layer, True
    if _remembers(layer):
        with drawing(seed, number):
            return make(layer, number), True
    # Twice: what both have in common is kept by somebody else.
    with torch.device("meta"):
        module, again = make(layer, number), make(layer, number)
    tensors = [*module.parameters(), *module.buffers()]
    same = {id(each) for each in _parts(module)} & {id(each) for each in _parts(again)}
    if any(id(each) in same and each.is_meta for each in tensors):
        raise InvalidConfiguration(
            "model",
            f"layer {number} is made by a function that returns different modules that it also "
            "keeps: return one module made beforehand, or a new one in each call",
        )
    return module, bool(same) or not all(each.is_meta for each in tensors)


def _parts(module: nn.Module) -> Iterator[object]:
    yield from module.modules()
    yield from module.parameters()
    yield from module.buffers()


_CACHED = type(cache(int))


def _remembers(value: object, depth: int = 4) -> bool:
    """Test for functools.cache or lru_cache in a function, as far as can be seen."""
    if isinstance(value, _CACHED):
        return True
    return depth > 0 and any(_remembers(each, depth - 1) for each in _used_by(value))


def _used_by(value: object) -> Iterator[object]:
    match value:
        case partial():
            yield from (value.func, *value.args, *value.keywords.values())
        case MethodType():
            yield value.__func__
        case FunctionType():
            for cell in value.__closure__ or ():
                yield from _content(cell)
            names = value.__globals__.keys() & {*value.__code__.co_names}
            yield from (value.__globals__[name] for name in names)


def _content(cell: Any) -> list[object]:
    try:
        return [cell.cell_contents]
    except ValueError:  # it is not filled yet
        return []


# What a layer does


def _run_on_meta(
    own: nn.Module, name: str, value: Tree, dtype: torch.dtype
) -> tuple[Tree, PassEffects]:
    """The output of a layer on the meta device, and the side effects of its passes."""

    def run(operators: Operators) -> Tree:
        with torch.device("meta"), operators:
            return own(value)

    try:
        result, passes = probed(own, name, run)
    except InvalidConfiguration:
        raise
    except Exception as error:
        raise InvalidConfiguration(
            "model",
            f"{name} does not take what the layer before returns, {Form.of(value, 'a')}: "
            f"{reason_of(error)}" + _about_buffers(own, dtype),
        ) from error
    Form.of(result, f"{name} returns a")
    return result, passes


def _require_trainable(module: nn.Module, name: str, dtype: torch.dtype) -> None:
    """Raise `InvalidConfiguration` for parameters and buffers that cannot be trained with."""
    for key, parameter in module.named_parameters():
        if parameter.is_complex():
            raise InvalidConfiguration(
                "model", f"{name} has a parameter {key} of complex numbers, which cannot be trained"
            )
    for each in module.modules():
        statistics = dict(each.named_buffers(recurse=False)).get("running_mean")
        has_both = statistics is not None and any(True for _ in each.parameters(recurse=False))
        if has_both and statistics.dtype.itemsize > dtype.itemsize:  # type: ignore[union-attr]
            raise InvalidConfiguration(
                "model",
                f"{name} has running statistics in {statistics.dtype}, which torch does not "  # type: ignore[union-attr]
                f"combine with parameters in {dtype}: take another norm, or affine=False",
            )


def _about_buffers(module: nn.Module, dtype: torch.dtype) -> str:
    wider = {
        name: buffer.dtype
        for name, buffer in module.named_buffers()
        if buffer.is_floating_point() and buffer.itemsize > dtype.itemsize
    }
    named = [f" (its buffer {name} is {kind}, and the run {dtype})" for name, kind in wider.items()]
    return "".join(named[:1])

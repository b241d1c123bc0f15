"""What can be known of layers without computing: shapes, who draws, and who shares what.

Layers are run on shapes alone (torch's meta device), each in turn, so that no
process makes more than its own. Which of them share a parameter is found by the way, and
which functions return a module that somebody keeps (one that they captured, or that
functools.cache remembers). Such a module is copied before anything is done to it. A function
that was first called here would keep a module without values: one that is seen to use
functools.cache is called for real instead, and any other that keeps what it made is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from bfpp.executor.batches import tried
from bfpp.executor.leaves import require_plain_loss
from bfpp.executor.model import Layer, Model, compute_in, copy, drawing, make
from bfpp.executor.payload import Form, Tree, in_precision
from bfpp.executor.shared_parameters import Owners
from bfpp.executor.uncompiled import uncompiled
from bfpp.schedules import InvalidConfiguration


@dataclass(frozen=True)
class Traced:
    """What the first stage takes, what stages hand on, and two kinds of layers.

    `random` are those that draw random numbers, `kept` those whose functions
    return what is not theirs alone. `shared` are the names of parameters that are
    ones of earlier layers, and theirs.
    """

    inputs: Form
    forms: list[Form]
    random: frozenset[int]
    kept: frozenset[int]
    shared: Mapping[str, str]


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
    breaks a rule of `bfpp.executor.model`. The first and the last stage may share
    parameters if the graph `ties_ends`.
    """
    require_plain_loss(model)
    inputs, _ = tried(model, step, range(microbatch_size))
    value = in_precision(inputs, dtype, torch.device("meta"))
    forms: list[Form] = []
    random, kept = set(), set()
    is_trained = False
    owners = Owners(cuts, ties_ends)
    for layers in cuts:
        for number in layers:
            module, is_kept = _look_at(model.layers[number], number, seed)
            owners.add(module, number)
            narrow = partial(compute_in, dtype=dtype, keeps_float32=keeps_float32)
            value, draws = _run_on_meta(module, number, value, dtype, narrow, is_kept)
            random |= {number} if draws else set()
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
    first = Form.of(inputs, "a batch has a")
    return Traced(first, forms, frozenset(random), frozenset(kept), owners.shared)


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
    """Whether a function uses functools.cache (or lru_cache), as far as can be seen."""
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


_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution"}
"""What takes factors of one precision alone, which torch does not say of shapes."""


class _Draws(TorchDispatchMode):
    """Sees whether random numbers are drawn; raises `TypeError` for factors of two precisions."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.found = self.found or torch.Tag.nondeterministic_seeded in func.tags
        if (name := func.overloadpacket.__name__) in _PRODUCTS:
            factors = {each.dtype: None for each in args if isinstance(each, Tensor)}
            if len(factors) > 1:
                raise TypeError(f"{name} of {' and '.join(map(str, factors))}")
        return func(*args, **(kwargs or {}))


def _run_on_meta(
    module: nn.Module,
    number: int,
    value: Tree,
    dtype: torch.dtype,
    narrow: Callable[[nn.Module], nn.Module],
    is_kept: bool,
) -> tuple[Tree, bool]:
    """What a layer returns, and whether it drew random numbers."""
    name = f"layer {number} ({type(module).__name__})"
    _require_trainable(module, name, dtype)
    own = copy(module, number, {}) if is_kept else module
    own = narrow(own.to(device="meta"))
    draws = _Draws()
    try:
        with torch.device("meta"), draws:
            result = own(value)
    except Exception as error:
        raise InvalidConfiguration(
            "model",
            f"{name} does not take what the layer before returns, {Form.of(value, 'a')}: {error}"
            + _about_buffers(own, dtype),
        ) from error
    Form.of(result, f"{name} returns a")
    return result, draws.found


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

"""State that a call leaves in Python objects: counters, generators, caches and tensors.

A value that can change is turned into one that cannot, to be compared with what it is later:
attributes of modules, what their hooks and functions captured, and the globals that these name.
Parameters and buffers are not looked at here, and of tensors no more than which they are.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

DEPTH = 4
"""Depth of the search through objects."""

MANY = 1000
"""The most items of a container to look at; of a larger one, the number of all is kept too."""

OWN = nn.Module().__dict__.keys()
"""Attributes of modules that are torch's own."""

HOOKS = ("_forward_pre_hooks", "_forward_hooks")

PLAIN = (bool, int, float, complex, str, bytes, type(None))


def remains(root: nn.Module | object) -> dict[str, object]:
    """State of a module or a function by name, except parameters and buffers.

    A tensor stands for itself; whatever else, for what it was.
    """
    found: dict[str, object] = {}
    seen: set[int] = set()
    if not isinstance(root, nn.Module):
        return {name: _now(value, seen, DEPTH) for name, value in _captured(root)}
    for prefix, module in root.named_modules():
        kept = {key: value for key, value in vars(module).items() if key not in OWN}
        for key, value in kept.items():
            found[f"{prefix}.{key}".lstrip(".")] = _now(value, seen, DEPTH)
        functions = [*_hooks(module), *_written_by_user(type(module))]
        for name, value in (each for function in functions for each in _captured(function)):
            found[f"{prefix}.{name}".lstrip(".")] = _now(value, seen, DEPTH)
    return found


def _hooks(module: nn.Module) -> Iterator[object]:
    for name in HOOKS:
        yield from getattr(module, name).values()


def _written_by_user(kind: type[nn.Module]) -> Iterator[object]:
    """The function that a class computes with, unless it is torch's."""
    if not kind.__module__.startswith("torch."):
        yield kind.forward


def _captured(function: object) -> Iterator[tuple[str, object]]:
    """A function's closure, defaults and mutable globals, by name."""
    match function:
        case FunctionType():
            for name, cell in zip(
                function.__code__.co_freevars, function.__closure__ or (), strict=True
            ):
                try:
                    yield name, cell.cell_contents
                except ValueError:  # it is not filled yet
                    continue
            used = {*function.__code__.co_names} & function.__globals__.keys()
            for name in sorted(used):
                if isinstance(value := function.__globals__[name], CHANGING):
                    yield name, value
        case MethodType():
            yield "self", function.__self__
            yield from _captured(function.__func__)
        case partial():
            yield from _captured(function.func)
            yield from ((f"argument {number}", each) for number, each in enumerate(function.args))
            yield from function.keywords.items()
        case nn.Module():
            yield from remains(function).items()
        case _:
            yield from getattr(function, "__dict__", {}).items()


CHANGING = (
    bool, int, float, list, dict, set, deque, count, random.Random, torch.Generator,
    np.random.Generator, np.random.RandomState, np.ndarray,
)  # fmt: skip


def _now(value: Any, seen: set[int], depth: int) -> object:
    """An immutable snapshot of a value; a tensor is returned as it is."""
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, Tensor):
        return value
    if depth == 0 or id(value) in seen:
        return type(value)
    seen.add(id(value))
    for kind, state in STATES.items():
        if isinstance(value, kind):
            return repr(state(value))
    if isinstance(value, Mapping):
        return _items(value.items(), len(value), seen, depth)
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return _items(enumerate(value), len(value), seen, depth)
    if isinstance(value, (nn.Module, ModuleType, type)):
        return id(value)
    return _items(_captured(value), 0, seen, depth)


def _items(
    items: Iterable[tuple[object, object]], size: int, seen: set[int], depth: int
) -> tuple[object, ...]:
    """The items of a container without its tensors: a list of those may grow unread."""
    found: list[tuple[object, object]] = []
    for number, (key, value) in enumerate(items):
        if number == MANY:
            found.append(("of", size))
            break
        if not isinstance(now := _now(value, seen, depth - 1), Tensor):
            found.append((str(key), now))
    return tuple(found)


def numbers_of(state: Any) -> object:
    """The state of a generator of numpy's older kind, to be compared."""
    own = state["state"]
    return own["key"].tobytes(), own["pos"], state["has_gauss"], state["gauss"]


STATES: Mapping[type, Any] = {
    torch.Generator: lambda value: value.get_state().tolist(),
    random.Random: lambda value: value.getstate(),
    np.random.Generator: lambda value: value.bit_generator.state,
    np.random.RandomState: lambda value: numbers_of(value.get_state(legacy=False)),
    np.ndarray: lambda value: value.tobytes() if value.nbytes < 2**20 else value.shape,
    count: repr,
}
"""Readers of the state of objects that draw or count."""

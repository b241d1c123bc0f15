"""State that a call leaves in Python objects: counters, generators, caches and tensors.

A value that can change is turned into one that cannot, to be compared with what it is later:
attributes of modules and of their classes, what their methods and hooks captured, and the globals
that these name, also through functions and modules of the user's own. Parameters and buffers are
not looked at here, and of tensors no more than which they are.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from types import (
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
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
    state: dict[str, object] = {}
    seen, known = set[int](), set[int]()
    if not isinstance(root, nn.Module):
        return {name: _now(value, seen, DEPTH) for name, value in _captured(root)}
    for prefix, module in root.named_modules():
        kept = [(key, value) for key, value in vars(module).items() if key not in OWN]
        hooked = (each for hook in _hooks(module) for each in _captured(hook))
        of_methods = (
            each for method in _methods(type(module)) for each in _of_function(method, known)
        )
        captured = [*hooked, *of_methods]
        for key, value in [*kept, *_class_attributes(type(module)), *captured]:
            name = f"{prefix}.{key}".lstrip(".")
            # Many methods name one global: what is seen again, or elsewhere, is not looked at.
            state.setdefault(name, _now(value, seen, DEPTH))
    return state


def _hooks(module: nn.Module) -> Iterator[object]:
    for name in HOOKS:
        yield from getattr(module, name).values()


def _is_users(module: str | None) -> bool:
    """True for a module that is neither Python's, nor torch's or numpy's."""
    package = (module or "builtins").partition(".")[0]
    return package not in LIBRARIES


def _own_classes(kind: type) -> Iterator[Mapping[str, Any]]:
    """Attributes of a class and its bases, of those that the user wrote."""
    for each in kind.__mro__:
        if _is_users(each.__module__):
            yield vars(each)


def _methods(kind: type) -> Iterator[FunctionType]:
    for held in _own_classes(kind):
        for value in held.values():
            function = value.fget if isinstance(value, property) else value
            function = getattr(function, "__func__", function)  # of static and class methods
            if isinstance(function, FunctionType):
                yield function


def _class_attributes(kind: type) -> Iterator[tuple[str, object]]:
    """Attributes of a class that are values, by name."""
    for held in _own_classes(kind):
        for name, value in held.items():
            if not name.startswith("__") and isinstance(value, CHANGING):
                yield name, value


def _captured(function: object) -> Iterator[tuple[str, object]]:
    """A function's closure, defaults and mutable globals, by name; an object's attributes."""
    match function:
        case FunctionType():
            yield from _of_function(function, set())
        case MethodType():
            yield "self", function.__self__
            yield from _captured(function.__func__)
        case partial():
            yield from _captured(function.func)
            yield from ((f"argument {number}", each) for number, each in enumerate(function.args))
            yield from function.keywords.items()
        case nn.Module():
            yield from remains(function).items()
        case GeneratorType():
            if function.gi_frame is not None:
                yield "place", function.gi_frame.f_lasti
                yield from function.gi_frame.f_locals.items()
        case _:
            yield from getattr(function, "__dict__", {}).items()
            for held in _own_classes(type(function)):
                slots = [
                    name for name, each in held.items() if isinstance(each, MemberDescriptorType)
                ]
                yield from (
                    (name, getattr(function, name)) for name in slots if hasattr(function, name)
                )
            yield from _class_attributes(type(function))


def _of_function(function: FunctionType, known: set[int]) -> Iterator[tuple[str, object]]:
    """Like `_captured`, also of the user's functions that it calls by their names.

    Functions that are `known` are left out.
    """
    if id(function) in known:
        return
    known.add(id(function))
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it is not filled yet
            continue
    defaults = function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) :], defaults, strict=False)
    yield from (function.__kwdefaults__ or {}).items()
    named = {*code.co_names}
    for name, value in _named(named, function.__globals__):
        if isinstance(value, FunctionType):
            if _is_users(value.__module__):
                yield from _of_function(value, known)
        elif isinstance(value, ModuleType):
            of_module = _named(named, vars(value)) if _is_users(value.__name__) else ()
            yield from ((f"{name}.{key}", each) for key, each in of_module if _is_state(each))
        elif _is_state(value):
            yield name, value


def _named(names: set[str], held: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, held[name]) for name in sorted(names & held.keys()))


def _is_state(value: object) -> bool:
    """True for a value that can change, or a name for one that can be another."""
    if isinstance(value, (type, ModuleType, FunctionType, nn.Module)):
        return False
    return isinstance(value, CHANGING) or _is_users(type(value).__module__)


CHANGING = (
    bool, int, float, list, dict, set, deque, Iterator, random.Random, torch.Generator,
    np.random.Generator, np.random.RandomState, np.ndarray,
)  # fmt: skip

LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "numpy", "bfpp"})
"""Packages in whose classes and functions no state of a layer is looked for."""


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
    described: list[tuple[object, object]] = []
    for number, (key, value) in enumerate(items):
        if number == MANY:
            described.append(("of", size))
            break
        if not isinstance(now := _now(value, seen, depth - 1), Tensor):
            described.append((str(key), now))
    return tuple(described)


def numbers_of(state: Any) -> object:
    """The state of a generator of numpy's older kind, to be compared."""
    own = state["state"]
    return own["key"].tobytes(), own["pos"], state["has_gauss"], state["gauss"]


STATES: Mapping[type, Any] = {
    torch.Generator: lambda value: value.get_state().tolist(),
    random.Random: lambda value: value.getstate(),
    np.random.Generator: lambda value: value.bit_generator.state,
    np.random.RandomState: lambda value: numbers_of(value.get_state(legacy=False)),
    # From a mebibyte on, arrays are not compared: that would take longer than the passes.
    np.ndarray: lambda value: value.tobytes() if value.nbytes < 2**20 else value.shape,
    count: repr,
}
"""Readers of the state of objects that draw or count."""

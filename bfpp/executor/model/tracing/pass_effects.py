"""Side effects of passes, observed on the meta device before training.

A layer is called once. If anything is left of that (an attribute that is new, a buffer that was
written to), it is called again: what the second call leaves as it was is a cache, and harmless;
what it changes again is state. Buffers may be state (`bfpp.executor.model.buffers`). A counter, an
attribute that is read before it is set again, or a generator of a layer's own may not: passes
run in another order than in a plain loop, some of them twice, and a checkpoint has neither.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bfpp.executor.model.tracing.object_state import numbers_of, remains
from bfpp.schedules import InvalidConfiguration

GEMMS = {"mm", "addmm", "bmm", "baddbmm", "convolution"}
"""Operators whose factors must have one precision, which torch does not check on meta tensors."""

STATISTICS = slice(3, 5)
"""The arguments of `native_batch_norm` that it writes to, and does not say so."""

OVERWRITING = {"copy_", "fill_", "zero_"}
"""Operators that write to a tensor without reading it."""


def memory(tensor: Tensor) -> int:
    """A number of a tensor's memory: on the meta device there is no address."""
    number: int = tensor.untyped_storage()._cdata
    return number


class Operators(TorchDispatchMode):
    """Observe the draws, reads and writes of operators; raises `TypeError` for mixed precisions."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = False
        self.generators: list[torch.Generator] = []
        self.read: set[int] = set()
        self.written: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        given, name = kwargs or {}, func.overloadpacket.__name__
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.draws = True
            own = given.get("generator")
            if own is not None and own is not torch.default_generator:
                self.generators.append(own)
        if name in GEMMS:
            factors = {each.dtype: None for each in args if isinstance(each, Tensor)}
            if len(factors) > 1:
                raise TypeError(f"{name} of {' and '.join(map(str, factors))}")
        self._note(func, name, args, given)
        return func(*args, **given)

    def _note(self, func: Any, name: str, args: Any, given: Any) -> None:
        tensors = _memories((args, given))
        self.read |= tensors - (_memories(args[:1]) if name in OVERWRITING else set())
        if name == "native_batch_norm" and args[STATISTICS.stop]:
            self.written |= _memories(args[STATISTICS])
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                by_place = args[number] if number < len(args) else None
                self.written |= _memories(given.get(argument.name, by_place))


def _memories(value: Any) -> set[int]:
    return {memory(each) for each in pytree.tree_leaves(value) if isinstance(each, Tensor)}


@contextmanager
def python_numbers(name: str) -> Iterator[None]:
    """Raise `InvalidConfiguration` for draws from Python's or numpy's own generators.

    They are as they were afterwards.
    """
    python, arrays = random.getstate(), np.random.get_state(legacy=False)
    try:
        yield
        now = np.random.get_state(legacy=False)
        for words, is_same in (
            ("Python's random", python == random.getstate()),
            ("numpy's random", numbers_of(arrays) == numbers_of(now)),
        ):
            if not is_same:
                raise InvalidConfiguration(
                    "model",
                    f"{name} draws from {words}, which no checkpoint holds and a pass that is run "
                    "again draws anew: draw from torch's generator (torch.rand, without a "
                    "generator of your own), which is seeded for each pass",
                )
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


@dataclass(frozen=True)
class PassEffects:
    """The side effects of a layer's passes.

    Whether they draw random numbers; the buffers that they change; and, by module, the attributes
    that they set: whoever reads one of these needs the module that was trained.
    """

    draws: bool = False
    moving: frozenset[str] = frozenset()
    sets: dict[str, frozenset[str]] = field(default_factory=dict)


class _Looked:
    """A module's buffers, its parameters' memory, and its other attributes, as they are now."""

    def __init__(self, module: object) -> None:
        self.buffers: dict[str, Tensor] = {}
        self.parameters: dict[str, int] = {}
        if isinstance(module, nn.Module):
            self.buffers |= module.named_buffers(remove_duplicate=False)
            self.parameters |= {name: memory(each) for name, each in module.named_parameters()}
        self.others = remains(module)

    def changed(self, before: _Looked) -> list[str]:
        """Attributes that are others than before."""
        return [
            name
            for name, value in self.others.items()
            if name not in before.others or not _same(value, before.others[name])
        ]

    def written(self, before: _Looked, seen: Operators) -> list[str]:
        """Attributes that are tensors of before, and were read and written to."""
        return [
            name
            for name, value in self.others.items()
            if isinstance(value, Tensor)
            and value is before.others.get(name)
            and memory(value) in seen.written & seen.read
        ]

    def moved(self, before: _Looked, written: Collection[int]) -> list[str]:
        """Buffers that are others, or were written to."""
        return [
            name
            for name, buffer in self.buffers.items()
            if before.buffers.get(name) is not buffer or memory(buffer) in written
        ]


def _same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return one is other
    return one == other


def probed(module: object, name: str, run: Callable[[Operators], Any]) -> tuple[Any, PassEffects]:
    """`run` a module or function on shapes: its output, and the side effects of its passes.

    Raises `InvalidConfiguration` for state that cannot be kept.
    """
    before, first = _Looked(module), Operators()
    with python_numbers(name):
        result = run(first)
        _require_shared_generator(name, first)
        after = _Looked(module)
        _require_same_parameters(name, before, after, first.written)
        changed, moved = after.changed(before), after.moved(before, first.written)
        sets = _by_module(changed)
        if not (changed or moved or after.written(before, first)):
            return result, PassEffects(first.draws, frozenset(), sets)
        # A cache is filled by the first pass alone: only another shows what each one changes.
        run(second := Operators())
    last = _Looked(module)
    for each in last.changed(after):
        kept = after.others.get(each)
        if not isinstance(kept, Tensor) or memory(kept) in second.read:
            _refuse(name, each)
    for each in last.written(after, second):
        _refuse(name, each)
    moving = frozenset(last.moved(after, second.written))
    for each in moving:
        _require_one_form(name, each, before.buffers.get(each), last.buffers[each])
    return result, PassEffects(first.draws, moving, sets)


def _by_module(changed: Collection[str]) -> dict[str, frozenset[str]]:
    by_module: dict[str, set[str]] = {}
    for name in changed:
        path, _, key = name.rpartition(".")
        by_module.setdefault(path, set()).add(key)
    return {path: frozenset(keys) for path, keys in by_module.items()}


def _require_shared_generator(name: str, seen: Operators) -> None:
    if seen.generators:
        raise InvalidConfiguration(
            "model",
            f"{name} draws from a torch.Generator of its own, which no checkpoint holds and a pass "
            "that is run again draws from anew: draw without it, from torch's own, which is seeded "
            "for each pass",
        )


def _require_same_parameters(
    name: str, before: _Looked, after: _Looked, written: Collection[int]
) -> None:
    for each, place in before.parameters.items():
        if place in written or after.parameters.get(each) != place:
            raise InvalidConfiguration(
                "model",
                f"{name} changes its parameter {each} in a pass, which only the optimizer does: "
                "compute with a changed copy of it (torch.nn.utils.parametrize)",
            )


def _refuse(name: str, attribute: str) -> None:
    raise InvalidConfiguration(
        "model",
        f"{name} changes its {attribute} in each pass, which no checkpoint holds and a pass that "
        "is run again changes twice: keep it in a buffer (register_buffer)",
    )


def _require_one_form(name: str, buffer: str, first: Tensor | None, last: Tensor) -> None:
    if first is None or (first.shape, first.dtype) != (last.shape, last.dtype):
        raise InvalidConfiguration(
            "model",
            f"{name} has a buffer {buffer} that passes change, and that has not one form from "
            "the start: register it with its first values, and keep its shape and dtype",
        )

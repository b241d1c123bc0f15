"""Frozen dataclasses as JSON between processes, checked as they are read.

Whoever reaches the store can write there, so what is read has the fields of its class, each of its
type, or is refused.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

PLAIN: dict[type, tuple[type, ...]] = {
    bool: (bool,), int: (int,), float: (float, int), str: (str,), NoneType: (NoneType,),
}  # fmt: skip
"""JSON's types for these. (Its true and false are numbers to Python, but not here.)"""


def to_json(value: Any) -> str:
    """A frozen dataclass as JSON."""
    return json.dumps(asdict(value))


def from_json(kind: type[T], text: str | bytes) -> T:
    """The inverse of `to_json`; raises `ValueError` for texts that are no `kind`."""
    try:
        value: T = _read(kind, json.loads(text))
    except RecursionError as error:
        raise ValueError("too deep") from error
    return value


def _read(kind: Any, value: Any) -> Any:
    if get_origin(kind) is UnionType:
        return _one_of(get_args(kind), value)
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_read(get_args(kind)[0], each) for each in value)
    if is_dataclass(kind) and isinstance(value, dict):
        return _fields(kind, value)
    if (
        kind in PLAIN
        and isinstance(value, PLAIN[kind])
        and (kind is bool) is isinstance(value, bool)
    ):
        return value
    raise ValueError(f"{type(value).__name__} is no {kind}")


def _one_of(kinds: tuple[Any, ...], value: Any) -> Any:
    """The value as the optional one of two kinds, the other of which is None."""
    (kind,) = (each for each in kinds if each is not NoneType)
    return None if value is None else _read(kind, value)


def _fields(kind: Any, values: dict[str, Any]) -> Any:
    kinds = _kinds(kind)
    needed = {each.name for each in fields(kind) if each.default is MISSING}
    if not needed <= values.keys() <= kinds.keys():
        raise ValueError(f"these are not the fields of {kind.__name__}")
    return kind(**{name: _read(kinds[name], value) for name, value in values.items()})


@cache
def _kinds(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)

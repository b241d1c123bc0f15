"""Arithmetic of a shell script: whole numbers, as in `$((...))`."""

from __future__ import annotations

import re
from collections.abc import Callable

AMOUNT = re.compile(r"(?<![\w${])([A-Za-z_]\w*)")
"""A variable without `$`, which it needs none of there."""

LONGEST = 200
"""Letters of the longest text that is worked out."""

_PARTS = re.compile(r"\s*(\d+|&&|\|\||[=!<>]=|[-+*/%<>()?:!])")


def _quotient(one: int, other: int) -> int:
    """One divided by another, without the rest: as in C, towards zero."""
    whole = abs(one) // abs(other)
    return whole if (one < 0) == (other < 0) else -whole


OPERATORS: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda one, other: int(bool(one or other))),
    "&&": (2, lambda one, other: int(bool(one and other))),
    "==": (3, lambda one, other: int(one == other)),
    "!=": (3, lambda one, other: int(one != other)),
    "<": (4, lambda one, other: int(one < other)),
    "<=": (4, lambda one, other: int(one <= other)),
    ">": (4, lambda one, other: int(one > other)),
    ">=": (4, lambda one, other: int(one >= other)),
    "+": (5, lambda one, other: one + other),
    "-": (5, lambda one, other: one - other),
    "*": (6, lambda one, other: one * other),
    "/": (6, _quotient),
    "%": (6, lambda one, other: one - other * _quotient(one, other)),
}
"""How tightly each operator of two numbers binds, and what it makes of them."""

SIGNS: dict[str, Callable[[int], int]] = {"-": int.__neg__, "+": int.__pos__, "!": lambda x: not x}


def calculated(text: str) -> str | None:
    """The value of a text; None for anything but numbers, operators and brackets."""
    parts, at = [], 0
    while len(text) <= LONGEST and (part := _PARTS.match(text, at)):
        parts.append(part[1])
        at = part.end()
    if text[at:].strip():
        return None
    try:
        value, rest = _chosen(parts)
    except (IndexError, ValueError, ZeroDivisionError, RecursionError):
        return None
    return None if rest else str(int(value))


def _chosen(parts: list[str]) -> tuple[int, list[str]]:
    """`A ? B : C`, or what has no question; and the parts that follow."""
    value, parts = _combined(parts, 0)
    if parts[:1] != ["?"]:
        return value, parts
    one, parts = _chosen(parts[1:])
    if parts[0] != ":":
        raise ValueError("a question has no other answer")
    other, parts = _chosen(parts[1:])
    return (one if value else other), parts


def _combined(parts: list[str], loosest: int) -> tuple[int, list[str]]:
    """Numbers joined by operators that bind more tightly than the loosest around them."""
    value, parts = _number(parts)
    while parts and parts[0] in OPERATORS and OPERATORS[parts[0]][0] > loosest:
        tightness, combine = OPERATORS[parts[0]]
        other, parts = _combined(parts[1:], tightness)
        value = combine(value, other)
    return value, parts


def _number(parts: list[str]) -> tuple[int, list[str]]:
    first, rest = parts[0], parts[1:]
    if first in SIGNS:
        value, rest = _number(rest)
        return SIGNS[first](value), rest
    if first != "(":
        return int(first), rest
    value, rest = _chosen(rest)
    if rest[0] != ")":
        raise ValueError("a bracket is not closed")
    return value, rest[1:]

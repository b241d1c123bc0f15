"""Values of plain expressions in Python, worked out without running them.

A value that is only known when the code runs is an `Unknown`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

LONGEST = 10_000
"""Elements of a list, at most."""


class Unknown(NamedTuple):
    """A value that is only known when the code runs, as it is written."""

    text: str


class Node:
    """An object with attributes, which are made when they are first set or asked for."""

    def __init__(self, kind: str = "") -> None:
        self.kind = kind
        self.values: dict[str, Any] = {}

    def child(self, name: str) -> Any:
        """The attribute of that name."""
        return self.values.setdefault(name, Node())


class ForeignCall(NamedTuple):
    """A call of code that is elsewhere: the parts of its name, and its arguments."""

    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class CodeReader(Protocol):
    """The reader of a module, which gives the values of names and calls in it."""

    def value(self, node: ast.expr, known: dict[str, Any], module: Any, depth: int) -> Any:
        """The value of an expression."""

    def named(self, name: str, module: Any) -> Any:
        """The value of a constant of the module, or `NOTHING`."""

    def call(
        self, name: str, arguments: list[Any], keywords: dict[str, Any], module: Any, depth: int
    ) -> Any:
        """The value that a function returns whose code is there, or `NOTHING`."""


NOTHING = object()
"""No value: that of an expression which is not plain."""

Known = dict[str, Any]


def _constant(_: CodeReader, node: Any, *__: Any) -> Any:
    return node.value


def _name(reading: CodeReader, node: Any, known: Known, module: Any, *_: Any) -> Any:
    if node.id in known:
        return known[node.id]
    return reading.named(node.id, module)


def _attribute(reading: CodeReader, node: Any, known: Known, module: Any, depth: int) -> Any:
    owner = reading.value(node.value, known, module, depth)
    if isinstance(owner, Node):
        return owner.child(node.attr)
    if isinstance(owner, Unknown):  # of a long chain, each name is written once
        return Unknown(f"{owner.text}.{node.attr}"[:80])
    return Unknown(ast.unparse(node)[:80])


def _list(reading: CodeReader, node: Any, known: Known, module: Any, depth: int) -> Any:
    elements = [reading.value(each, known, module, depth) for each in node.elts]
    return tuple(elements) if isinstance(node, ast.Tuple) else elements


def _comprehension(reading: CodeReader, node: Any, known: Known, module: Any, depth: int) -> Any:
    """A list made of another one, name by name."""
    [of, *more] = node.generators
    every = reading.value(of.iter, known, module, depth)
    if more or of.ifs or not isinstance(of.target, ast.Name) or not _is_list(every):
        return NOTHING
    return [reading.value(node.elt, {**known, of.target.id: each}, module, depth) for each in every]


def _is_list(value: Any) -> bool:
    """True for a list or a tuple of values."""
    return isinstance(value, list | tuple) and not isinstance(value, Unknown | ForeignCall)


def _dict(reading: CodeReader, node: Any, known: Known, module: Any, depth: int) -> Any:
    items = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            continue
        known_key = reading.value(key, known, module, depth)
        if isinstance(known_key, str | int | tuple):
            with suppress(TypeError):  # a tuple that holds a list is no key
                items[known_key] = reading.value(value, known, module, depth)
    return items


def _binary(reading: CodeReader, node: Any, known: Known, module: Any, depth: int) -> Any:
    left, right = (reading.value(each, known, module, depth) for each in (node.left, node.right))
    if isinstance(left, list) and isinstance(right, list) and isinstance(node.op, ast.Add):
        return left + right if len(left) + len(right) <= LONGEST else NOTHING
    if isinstance(left, list) and isinstance(right, int) and isinstance(node.op, ast.Mult):
        return left * right if right >= 0 and len(left) * right <= LONGEST else NOTHING
    numbers = all(isinstance(each, int | float) and abs(each) < 1e15 for each in (left, right))
    operation = _OPERATIONS.get(type(node.op))
    if not numbers or operation is None or (right == 0 and not isinstance(node.op, _SAFE)):
        return NOTHING
    return operation(left, right)


_SAFE = (ast.Add, ast.Sub, ast.Mult)
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Div: lambda left, right: left / right,
    ast.Mod: lambda left, right: left % right,
}


def _unary(reading: CodeReader, node: Any, known: Known, module: Any, depth: int) -> Any:
    value = reading.value(node.operand, known, module, depth)
    if isinstance(value, Unknown | ForeignCall | Node):
        return NOTHING
    if isinstance(node.op, ast.Not):
        return not value
    return -value if isinstance(node.op, ast.USub) and isinstance(value, int | float) else NOTHING


def _boolean(reading: CodeReader, node: Any, known: Known, module: Any, depth: int) -> Any:
    value: Any = None
    for each in node.values:
        value = reading.value(each, known, module, depth)
        if isinstance(value, Unknown | ForeignCall):
            return NOTHING
        empty = isinstance(value, Node) and not value.values
        if (bool(value) and not empty) == isinstance(node.op, ast.Or):
            return value
    return None if isinstance(value, Node) and not value.values else value


def _choice(reading: CodeReader, node: Any, known: Known, module: Any, depth: int) -> Any:
    holds = reading.value(node.test, known, module, depth)
    if isinstance(holds, Unknown | ForeignCall):
        return NOTHING
    return reading.value(node.body if holds else node.orelse, known, module, depth)


def _compare(reading: CodeReader, node: Any, known: Known, module: Any, depth: int) -> Any:
    if len(node.ops) != 1:
        return NOTHING
    left, right = (
        reading.value(each, known, module, depth) for each in (node.left, node.comparators[0])
    )
    left, right = (None if isinstance(each, Node) and not each.values else each
                   for each in (left, right))  # fmt: skip
    comparison = _COMPARISONS.get(type(node.ops[0]))
    if comparison is None or any(isinstance(each, Unknown | ForeignCall) for each in (left, right)):
        return NOTHING
    try:
        return comparison(left, right)
    except TypeError:
        return NOTHING


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: lambda left, right: left == right,
    ast.NotEq: lambda left, right: left != right,
    ast.Is: lambda left, right: left is right,
    ast.IsNot: lambda left, right: left is not right,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Gt: lambda left, right: left > right,
    ast.GtE: lambda left, right: left >= right,
    ast.Lt: lambda left, right: left < right,
    ast.LtE: lambda left, right: left <= right,
}


def _subscript(reading: CodeReader, node: Any, known: Known, module: Any, depth: int) -> Any:
    owner = reading.value(node.value, known, module, depth)
    key = reading.value(node.slice, known, module, depth)
    try:
        return owner[key] if isinstance(owner, dict | list | tuple) else NOTHING
    except (KeyError, IndexError, TypeError):
        return NOTHING


def _call(reading: CodeReader, node: Any, known: Known, module: Any, depth: int) -> Any:
    arguments = [reading.value(each, known, module, depth) for each in node.args]
    keywords = {
        each.arg: reading.value(each.value, known, module, depth)
        for each in node.keywords
        if each.arg
    }
    name = ast.unparse(node.func)
    if name == "getattr" and len(arguments) >= 2 and isinstance(arguments[0], Node):
        result = arguments[0].values.get(str(arguments[1]))
        return arguments[2] if result is None and len(arguments) > 2 else result
    if name == "list" and len(arguments) == 1 and _is_list(arguments[0]):
        return list(arguments[0])
    if (result := reading.call(name, arguments, keywords, module, depth)) is not NOTHING:
        return result
    if name[:1].isupper() and keywords and "." not in name:
        made = Node(name)
        made.values.update(keywords)
        return made
    inner = node.func.value if isinstance(node.func, ast.Attribute) else None
    if isinstance(inner, ast.Call):  # a method of what another call gives: that one names it
        before = reading.value(inner, known, module, depth)
        if isinstance(before, ForeignCall):
            return ForeignCall(f"{before.name}.{node.func.attr}", before.arguments, before.keywords)
    return ForeignCall(name, tuple(arguments), keywords)


EXPRESSIONS: dict[type[ast.expr], Callable[..., Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.List: _list,
    ast.Tuple: _list,
    ast.ListComp: _comprehension,
    ast.Dict: _dict,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _boolean,
    ast.IfExp: _choice,
    ast.Compare: _compare,
    ast.Subscript: _subscript,
    ast.Call: _call,
}
"""Values of expressions, by their kind."""

"""Python functions that fill a configuration, read without being run.

Only what is plain has a meaning: constants, lists, tables, sums and products, attributes that are
set, comparisons, and calls of functions whose code is there. All else is unknown, and is listed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bfpp.launchers.arguments import FIELD
from bfpp.launchers.sources.documents import text_of_file
from bfpp.launchers.sources.recipe_values import (
    EXPRESSIONS,
    NOTHING,
    ForeignCall,
    Known,
    Node,
    Unknown,
)
from bfpp.schedules import InvalidConfiguration

FOLLOWED = "megatron.bridge.recipes"
"""Modules whose functions are followed; others have a meaning of their own."""

DEEPEST = 12
"""Functions that call each other, at most."""

MOST_STEPS = 20_000
"""Statements and expressions that are looked at, at most."""


class _Returned(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Raised(Exception):
    """A `raise` in the code."""


class Module:
    """The functions and constants of a file, and of files that it imports from its package."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.tree = ast.parse(text_of_file(path))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InvalidConfiguration(FIELD, f"{path} is not Python: {error}") from None
        self.functions = {
            each.name: each for each in self.tree.body if isinstance(each, ast.FunctionDef)
        }
        self.imported = dict(self._imports())
        self.constants: dict[str, Any] = {}

    def _imports(self) -> list[tuple[str, tuple[str, str]]]:
        """Names that are imported, each with the module and the name there."""
        return [
            (name.asname or name.name, (each.module or "", name.name))
            for each in self.tree.body
            if isinstance(each, ast.ImportFrom) and not each.level
            for name in each.names
        ]

    def file_of(self, module: str) -> str | None:
        """The file of a module of the same package, if it is next to this one in a checkout."""
        parts, own = module.split("."), Path(self.path).resolve()
        for parent in own.parents:
            if parent.name == parts[0]:
                file = parent.parent.joinpath(*parts).with_suffix(".py")
                return str(file) if file.is_file() else None
        return None


class Reading:
    """The configuration that a function fills, and the statements that are not understood."""

    def __init__(self, path: str) -> None:
        self.modules: dict[str, Module] = {}
        self.left_out: list[tuple[int, str]] = []
        self.steps = 0
        self.main = self._module(path)
        self._constants(self.main)

    def _module(self, path: str) -> Module:
        if path not in self.modules:
            self.modules[path] = Module(path)
        return self.modules[path]

    def _constants(self, module: Module) -> None:
        for statement in module.tree.body:
            target = None
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target = statement.targets[0]
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                target = statement.target
            if isinstance(target, ast.Name):
                module.constants[target.id] = self.value(statement.value, {}, module, 0)  # type: ignore[attr-defined]

    def called(
        self, module: Module, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any],
        depth: int = 0,
    ) -> Any:  # fmt: skip
        """The value that a function returns."""
        function = module.functions[name]
        if depth > DEEPEST:
            return Unknown(f"{name}(...)")
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        known: dict[str, Any] = {}
        for each, default in zip(reversed(names), reversed(function.args.defaults), strict=False):
            known[each] = self.value(default, {}, module, depth)
        for keyword, usual in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
            if usual is not None:
                known[keyword.arg] = self.value(usual, {}, module, depth)
        known |= dict(zip(names, arguments, strict=False))
        known |= keywords
        try:
            self._run(function.body, known, module, depth)
        except _Returned as returned:
            return returned.value
        return None

    def _run(
        self, body: Sequence[ast.stmt], known: dict[str, Any], module: Module, depth: int
    ) -> None:
        for statement in body:
            self._count()
            runner = _STATEMENTS.get(type(statement))
            if runner is None:
                self.leave_out(statement, module)
            else:
                runner(self, statement, known, module, depth)

    def _count(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise InvalidConfiguration(FIELD, f"{self.main.path} takes too long to read")

    def leave_out(self, statement: ast.AST, module: Module) -> None:
        """Note a statement that is not understood."""
        name = Path(module.path).name if module is not self.main else ""
        text = f"{name}: {ast.unparse(statement)}" if name else ast.unparse(statement)
        self.left_out.append((getattr(statement, "lineno", 0), text.partition("\n")[0][:80]))

    def value(self, node: ast.expr, known: dict[str, Any], module: Module, depth: int) -> Any:
        """The value of an expression, or an `Unknown`."""
        self._count()
        evaluate = EXPRESSIONS.get(type(node))
        if evaluate is None:
            return Unknown(ast.unparse(node)[:80])
        value = evaluate(self, node, known, module, depth)
        return Unknown(ast.unparse(node)[:80]) if value is NOTHING else value

    def named(self, name: str, module: Module) -> Any:
        """The value of a constant of a module, or `NOTHING`."""
        return module.constants.get(name, NOTHING)

    def call(
        self, name: str, arguments: list[Any], keywords: dict[str, Any], module: Module, depth: int
    ) -> Any:
        """The value that a function returns whose code is there, or `NOTHING`."""
        if name in module.imported and name not in module.functions:
            origin, there = module.imported[name]
            file = module.file_of(origin) if origin.startswith(FOLLOWED) else None
            if file is not None:
                is_new = file not in self.modules
                module, name = self._module(file), there
                if is_new:
                    self._constants(module)
        if name not in module.functions:
            return NOTHING
        return self.called(module, name, arguments, keywords, depth + 1)

    def assign(
        self, target: ast.expr, value: Any, known: dict[str, Any], module: Module, depth: int
    ) -> None:
        """Set a name or an attribute."""
        if isinstance(target, ast.Name):
            known[target.id] = value
            return
        if isinstance(target, ast.Attribute):
            owner = self.value(target.value, known, module, depth)
            if isinstance(owner, Node):
                owner.values[target.attr] = value
                return
            if isinstance(owner, str | ForeignCall) and isinstance(
                target.value, ast.Attribute | ast.Name
            ):
                self._own(target.value, owner, known, module, depth).values[target.attr] = value
                return
        self.leave_out(target, module)

    def _own(
        self, target: ast.expr, value: Any, known: dict[str, Any], module: Module, depth: int
    ) -> Node:
        """An object in the place of a name or a call, of which an attribute is set."""
        node = Node("replaced")
        node.values["="] = value
        self.assign(target, node, known, module, depth)
        return node


def _assign(reading: Reading, node: Any, known: Known, module: Module, depth: int) -> None:
    value = reading.value(node.value, known, module, depth)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        if isinstance(target, ast.Tuple):
            parts = value if isinstance(value, tuple | list) else ()
            for number, each in enumerate(target.elts):
                part = parts[number] if number < len(parts) else Unknown(ast.unparse(each))
                reading.assign(each, part, known, module, depth)
        else:
            reading.assign(target, value, known, module, depth)


def _expression(reading: Reading, node: Any, known: Known, module: Module, depth: int) -> None:
    if isinstance(node.value, ast.Constant):  # a docstring
        return
    if isinstance(reading.value(node.value, known, module, depth), Unknown | ForeignCall):
        reading.leave_out(node, module)


def _return(reading: Reading, node: Any, known: Known, module: Module, depth: int) -> None:
    raise _Returned(None if node.value is None else reading.value(node.value, known, module, depth))


def _if(reading: Reading, node: Any, known: Known, module: Module, depth: int) -> None:
    holds = reading.value(node.test, known, module, depth)
    if isinstance(holds, Unknown | ForeignCall):
        reading.leave_out(node, module)
        return
    reading._run(node.body if holds else node.orelse, known, module, depth)


def _try(reading: Reading, node: Any, known: Known, module: Module, depth: int) -> None:
    try:
        reading._run(node.body, known, module, depth)
    except _Raised:
        for handler in node.handlers[:1]:
            reading._run(handler.body, known, module, depth)
    reading._run(node.finalbody, known, module, depth)


def _raise(*_: Any) -> None:
    raise _Raised


def _pass(*_: Any) -> None:
    return


_STATEMENTS: dict[type[ast.stmt], Callable[..., None]] = {
    ast.Assign: _assign,
    ast.AnnAssign: _assign,
    ast.Expr: _expression,
    ast.Return: _return,
    ast.If: _if,
    ast.Try: _try,
    ast.Raise: _raise,
    ast.Pass: _pass,
    ast.Assert: _pass,
    ast.Import: _pass,
    ast.ImportFrom: _pass,
}


def filled(path: str, name: str) -> tuple[Node, list[tuple[int, str]]]:
    """The configuration that a function returns, and lines that are not understood."""
    try:
        reading = Reading(path)
        if name not in reading.main.functions:
            known = ", ".join(each for each in reading.main.functions if not each.startswith("_"))
            raise InvalidConfiguration(FIELD, f"{path} has no function {name}; it has {known}")
        config = reading.called(reading.main, name, (), {})
    except _Raised:
        raise InvalidConfiguration(FIELD, f"{path}: {name} raises an error") from None
    except RecursionError:
        raise InvalidConfiguration(FIELD, f"{path}: nested too deeply") from None
    if not isinstance(config, Node):
        raise InvalidConfiguration(FIELD, f"{path}: {name} returns no configuration that is plain")
    return config, reading.left_out

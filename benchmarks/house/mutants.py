"""Small faults that can be put into a source file, one at a time.

A mutant replaces one expression or call by another that is valid Python and means something else:
another comparison, operation, number or name, a condition turned round, an argument or a call left
out. Left alone are annotations, docstrings, sentences (the same can be said in other words),
imports, and what only a type checker reads.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

OPERATORS: Mapping[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
NOTHING = ast.Constant(None)


@dataclass(frozen=True)
class Mutant:
    """One fault: the text `before`, at bytes of a file, becomes `after`."""

    path: str
    function: str
    lines: range
    start: int
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        """The file's source with this fault."""
        end = self.start + len(self.before.encode())
        if source[self.start : end] != self.before.encode():
            raise ValueError(f"{self.path}:{self.lines[0]} has changed")
        return source[: self.start] + self.after.encode() + source[end:]

    @property
    def name(self) -> str:
        """The fault as it is listed, whatever line it moves to."""
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.path} {self.function}: {before} -> {after}"


def _operations(node: ast.BinOp | ast.BoolOp) -> Iterator[ast.AST]:
    if other := OPERATORS.get(type(node.op)):
        yield _changed(node, op=other())


def _comparisons(node: ast.Compare) -> Iterator[ast.AST]:
    for index, operator in enumerate(node.ops):
        other = OPERATORS[type(operator)]()
        yield _changed(node, ops=[*node.ops[:index], other, *node.ops[index + 1 :]])


def _negations(node: ast.UnaryOp) -> Iterator[ast.AST]:
    if isinstance(node.op, ast.Not | ast.USub):
        yield node.operand


def _constants(node: ast.Constant) -> Iterator[ast.AST]:
    match node.value:
        case bool(value):
            yield ast.Constant(not value)
        case int(value):
            yield ast.Constant(value + 1)
        case float(value):
            yield ast.Constant(value * 1.25 if value else 1.0)
        case str(value) if value and not any(map(str.isspace, value)):
            yield ast.Constant(value + "_")


def _choices(node: ast.IfExp | ast.If | ast.While) -> Iterator[tuple[ast.expr, ast.AST]]:
    yield node.test, ast.UnaryOp(ast.Not(), node.test)


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    if isinstance(node.func, ast.Name) and node.func.id in OPPOSITES:
        yield _changed(node, func=ast.Name(OPPOSITES[node.func.id]))
    for keyword in node.keywords:
        if keyword.arg and keyword.arg != "strict":  # of zip: it can only raise
            yield _changed(node, keywords=[each for each in node.keywords if each is not keyword])


def _filters(node: ast.comprehension) -> Iterator[tuple[ast.expr, ast.AST]]:
    for test in node.ifs:
        yield test, ast.Constant(True)


def _statements(node: ast.Expr | ast.AugAssign | ast.Continue) -> Iterator[ast.AST]:
    if not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call):
        yield ast.Pass()


def _returned(node: ast.Return) -> Iterator[tuple[ast.expr, ast.AST]]:
    if node.value is not None and not isinstance(node.value, ast.Constant):
        yield node.value, NOTHING


FAULTS: Mapping[type[ast.AST], Callable[..., Iterator[ast.AST | tuple[ast.expr, ast.AST]]]] = {
    ast.BinOp: _operations,
    ast.BoolOp: _operations,
    ast.Compare: _comparisons,
    ast.UnaryOp: _negations,
    ast.Constant: _constants,
    ast.If: _choices,
    ast.IfExp: _choices,
    ast.While: _choices,
    ast.Call: _calls,
    ast.comprehension: _filters,
    ast.Expr: _statements,
    ast.AugAssign: _statements,
    ast.Continue: _statements,
    ast.Return: _returned,
}
"""By kind of syntax: what may stand there instead, or pairs of an expression inside and that."""


def _changed(node: ast.AST, **fields: object) -> ast.AST:
    """A copy of a node with other fields."""
    return type(node)(**{**dict(ast.iter_fields(node)), **fields})


def mutants_of(folder: Path, path: str) -> list[Mutant]:
    """All faults that a file can have, in the order of its text."""
    source = (folder / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def mutant(function: str, old: ast.AST, new: ast.AST) -> Mutant:
        start = starts[old.lineno - 1] + old.col_offset
        end = starts[old.end_lineno - 1] + old.end_col_offset
        text = ast.unparse(ast.fix_missing_locations(new))
        if not isinstance(new, ast.Constant | ast.stmt):
            text = f"({text})"
        lines = range(old.lineno, old.end_lineno + 1)
        return Mutant(path, function, lines, start, source[start:end].decode(), text)

    found = []
    for function, node in _reached(ast.parse(source)):
        for fault in FAULTS.get(type(node), _nothing)(node):
            old, new = fault if isinstance(fault, tuple) else (node, fault)
            found.append(mutant(function, old, new))
    return sorted(found, key=lambda each: each.start)


def _nothing(node: ast.AST) -> Iterator[ast.AST]:
    del node
    yield from ()


def _reached(node: ast.AST, function: str = "", parent: str = "") -> Iterator[tuple[str, ast.AST]]:
    """The nodes whose faults count, each with the function that it is in."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        parent = f"{parent}.{node.name}".lstrip(".")
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        function = function or parent
    yield function, node
    for child in _children(node):
        yield from _reached(child, function, parent)


def _children(node: ast.AST) -> Iterable[ast.AST]:
    skipped: tuple[object, ...] = ()
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Raise() | ast.Assert():
            return ()
        case ast.JoinedStr():  # before Python 3.12, what is inside has no place in the file
            values = node.values if sys.version_info >= (3, 12) else ()
            return [each for each in values if isinstance(each, ast.FormattedValue)]
        case ast.FormattedValue():
            return [node.value]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            skipped = (*node.decorator_list, getattr(node, "returns", None))
        case ast.AnnAssign() | ast.arg():
            skipped = (node.annotation,)
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return ()
        case ast.Expr(value=ast.Constant()):
            return ()
    return [child for child in ast.iter_child_nodes(node) if child not in skipped]


def imported_by(folder: Path, path: str, files: Iterable[str]) -> list[str]:
    """Those of some files that import from a module."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    line = f"from {module} import "
    return [each for each in files if line in (folder / each).read_text()]

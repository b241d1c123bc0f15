"""Modules, functions and folders are read at a glance, and docstrings name a thing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.helpers import ROOT

LINES, FUNCTION, ROOMS = 400, 60, 14

FLAT = {"bfpp/commands"}
"""Folders with a module for each thing of one kind: a command."""

CLAUSE = re.compile(r"(What|That|Whether|Who|Where|How)\b")
"""The first word of a docstring that has a clause where a reader would search for a noun."""


def modules(root: Path) -> Iterator[tuple[str, str]]:
    """Paths and texts of a product's modules."""
    for path in sorted((root / "bfpp").rglob("*.py")):
        yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def too_long(root: Path) -> list[str]:
    files = [name for name, text in modules(root) if text.count("\n") > LINES]
    functions = [
        f"{name}: {node.name}"
        for name, text in modules(root)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= FUNCTION
    ]
    return files + functions


def too_full(root: Path) -> list[str]:
    """Folders with more rooms than are seen at a glance: modules, scripts, and folders of these."""
    files = [path for kind in ("*.py", "*.js") for path in (root / "bfpp").rglob(kind)]
    rooms: dict[Path, set[Path]] = {}
    for path in files:
        for each in (path, *path.parents):
            if each == root / "bfpp":
                break
            if each.name != "__init__.py":
                rooms.setdefault(each.parent, set()).add(each)
    names = {path.relative_to(root).as_posix(): len(inside) for path, inside in rooms.items()}
    return sorted(each for each, count in names.items() if count > ROOMS and each not in FLAT)


def strangers(root: Path) -> list[str]:
    """Folders of tests that are no room of the product, nor shared by its tests."""
    rooms = {path.parent.relative_to(root / "bfpp") for path in (root / "bfpp").rglob("*.py")}
    tested = {path.parent.relative_to(root / "tests") for path in root.glob("tests/**/test_*.py")}
    return sorted(path.as_posix() for path in tested - rooms - {Path("house")})


def clauses(root: Path) -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return [
        f"{name}: {getattr(node, 'name', 'module')}"
        for name, text in modules(root)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kinds) and CLAUSE.match(ast.get_docstring(node) or "")
    ]


def test_files_that_begin_first_are_there() -> None:
    assert [name for name in LONG if not (ROOT / "tests" / name).is_file()] == []


@pytest.mark.parametrize("faults", [too_long, too_full, strangers, clauses])
def test_the_house_is_read_at_a_glance(faults):
    assert faults(ROOT) == []


def test_whatever_is_too_long_or_too_full_or_a_clause_is_seen(tmp_path):
    room = tmp_path / "bfpp" / "room"
    room.mkdir(parents=True)
    for at in range(ROOMS):
        (room / f"module_{at}.py").write_text('"""What is in it."""\n')
    assert too_full(tmp_path) == []
    (room / "another.py").write_text("\n" * LINES)
    assert (too_full(tmp_path), too_long(tmp_path)) == (["bfpp/room"], [])
    (room / "another.py").write_text("\n" * (LINES + 1))
    (room / "one_more.py").write_text("def long():\n" + "    x = 1\n" * FUNCTION)
    assert too_long(tmp_path) == ["bfpp/room/another.py", "bfpp/room/one_more.py: long"]
    for folder in ("room", "hall", "house"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / "test_it.py").touch()
    assert strangers(tmp_path) == ["hall"]
    assert clauses(tmp_path) == sorted(f"bfpp/room/module_{at}.py: module" for at in range(ROOMS))

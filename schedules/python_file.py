"""What a Python file of a user's defines: `mine.py:SCHEDULE`.

As a script does, it may import files next to it.
"""

from __future__ import annotations

import ast
import copyreg
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any

from bfpp.schedules.invalid import InvalidConfiguration
from bfpp.schedules.steps import Schedule

MARK = ".py:"
"""What is between the file and the name of the schedule in it."""

ABSENT = object()
"""What is found where a file has nothing of that name."""

_loaded: set[str] = set()
"""The names of modules of users' files."""

_beside: set[str] = set()
"""The files next to those that they import."""

_schedules: dict[tuple[Path, str, bytes], Schedule] = {}
"""Those that are loaded, by file, name and what the file holds: each is made once."""


def load_schedule(source: str) -> Schedule:
    """The schedule, or one of the class, of that name in the file.

    Another process makes it of the file, too.
    """
    path, name = file_of(source), source.rpartition(MARK)[2]
    try:
        key = path.resolve(), name, path.read_bytes() if path.is_file() else b""
        if key in _schedules:
            return _schedules[key]
        found = named_in("schedule", path, name)
        schedule = found() if isinstance(found, type) else found
        if isinstance(schedule, Schedule):
            called: object = schedule.name
            if not isinstance(called, str):
                reason = f"{source}: its name must be a text, not {called!r}"
                raise InvalidConfiguration("schedule", reason)
            kind = type(schedule)
            if _is_users(kind.__module__):  # other processes can import the others
                copyreg.pickle(kind, partial(_reduced, path.resolve(), name))
            return _schedules.setdefault(key, replace(schedule, source=source))
    except InvalidConfiguration:
        raise
    except Exception as error:  # whatever a user's file raises
        words = f"{type(error).__name__}: {error}"
        raise InvalidConfiguration("schedule", f"{source} fails with {words}") from error
    raise InvalidConfiguration("schedule", f"{path} has no Schedule of the name {name!r}")


def file_of(source: str) -> Path:
    """The file of `mine.py:SCHEDULE`."""
    return Path(f"{source.rpartition(MARK)[0]}.py")


def with_imported(path: Path) -> tuple[Path, ...]:
    """A file, then those next to it that it imports, directly or not; none of bfpp itself."""
    file = path.resolve()
    found, waiting = dict[Path, None](), [file]
    while waiting:
        if (path := waiting.pop()) not in found:
            found[path] = None
            waiting += _imported_by(path, file.parent)
    return file, *sorted(found.keys() - {file})


def _is_users(module: str) -> bool:
    """Whether a module is that of a user's file, or of one that it imports from next to it."""
    return module in _loaded or _origin(module) in _beside


def _origin(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__file__", None)


@contextmanager
def _importing_from_next_to(path: Path) -> Iterator[None]:
    """What is next to a file can be imported; nothing of that name from next to another one is."""
    file, *others = with_imported(path)
    for other in others:
        inside = other.relative_to(file.parent).with_suffix("").parts
        name = ".".join(inside[:-1] if inside[-1] == "__init__" else inside)
        if _origin(name) in _beside - {str(other)}:
            del sys.modules[name]
        _beside.add(str(other))
    sys.path.insert(0, str(file.parent))
    try:
        yield
    finally:
        with suppress(ValueError):  # the file may have changed the path
            sys.path.remove(str(file.parent))


def _imported_by(path: Path, folder: Path) -> Iterator[Path]:
    """The files of a folder that a file in it imports."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # who loads it says why
        return
    for base, name in _imports(tree, path, folder):
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            place = base.joinpath(*parts[:depth])
            for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
                if file.is_file() and file.is_relative_to(folder):
                    yield file


def _imports(tree: ast.AST, path: Path, folder: Path) -> Iterator[tuple[Path, str]]:
    """Where what a file imports would be, and the name there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, base = [each.name for each in node.names], folder
        elif isinstance(node, ast.ImportFrom):
            within = f"{node.module}." if node.module else ""
            names = [within + each.name for each in node.names]
            base = path.joinpath(*[".."] * node.level).resolve() if node.level else folder
        else:
            continue
        yield from ((base, each) for each in names if each.partition(".")[0] != "bfpp")


def _reduced(path: Path, name: str, schedule: Schedule) -> tuple[Any, ...]:
    """What makes an equal schedule in another process: what it was found as, or `name`."""
    found_as = schedule.source.rpartition(MARK)[2] or name
    return _again, (f"{path}:{found_as}", schedule.parameters, schedule.source)


def _again(found_as: str, parameters: dict[str, Any], source: str) -> Schedule:
    return replace(load_schedule(found_as), **parameters, source=source)


def module_name(field: str, path: Path) -> str:
    """What a file is called as a module that was loaded for a field."""
    return f"bfpp_{field}_{path.stem}"


def named_in(field: str, path: Path, name: str) -> object:
    """What the file calls by that name, or `ABSENT`; raises whatever the file raises.

    Raises `InvalidConfiguration`, which blames `field`, if there is no such file.
    """
    own_name = module_name(field, path)
    spec = importlib.util.spec_from_file_location(own_name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InvalidConfiguration(field, f"there is no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[own_name] = module
    _loaded.add(own_name)
    with _importing_from_next_to(path):
        spec.loader.exec_module(module)
    return getattr(module, name, ABSENT)


def line_at_fault(error: BaseException) -> str | None:
    """Where in a user's file something was raised, `mine.py, line 7`; None if it was elsewhere.

    What it calls may raise, other than modules of ours: that may be their fault.
    """
    found = None
    for frame, line in walk_tb(error.__traceback__):
        name = frame.f_globals.get("__name__", "")
        if name in _loaded:
            found = f"{frame.f_code.co_filename}, line {line}"
        elif name.partition(".")[0] == "bfpp":
            found = None
    return found

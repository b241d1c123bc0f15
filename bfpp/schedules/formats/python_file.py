"""Objects defined in a user's Python file: `mine.py:SCHEDULE`.

Like a script, it may import files from its folder.
"""

from __future__ import annotations

import ast
import copyreg
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from traceback import walk_tb
from typing import Any, NoReturn

from bfpp.schedules.errors import InvalidConfiguration, InvalidInput
from bfpp.schedules.orders.steps import Schedule

MARK = ".py:"
"""The separator of a Python file and the name of an object in it."""

ABSENT = object()
"""The result for a name that a file does not define."""

_loaded: set[str] = set()
"""The names of modules of users' files."""

_beside: set[str] = set()
"""The files next to those that they import."""

_schedules: dict[tuple[Path, str, bytes], Schedule] = {}
"""Loaded schedules by file, name and contents of the file: each is made once."""


def load_schedule(source: str) -> Schedule:
    """The schedule, or one of the class, of that name in the file.

    Another process loads it from the file again.
    """
    path, name = file_of(source), source.rpartition(MARK)[2]
    try:
        key = path.resolve(), name, path.read_bytes() if path.is_file() else b""
        if key in _schedules:
            return _schedules[key]
        named = named_in("schedule", path, name)
        with exit_as_error():
            schedule = named() if isinstance(named, type) else named
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
        reason = f"{source} fails with {type(error).__name__}: {error}"
        raise InvalidConfiguration("schedule", reason) from error
    raise InvalidConfiguration("schedule", f"{path} has no Schedule of the name {name!r}")


def file_of(source: str) -> Path:
    """The file of `mine.py:SCHEDULE`."""
    return Path(f"{source.rpartition(MARK)[0]}.py")


def require_trust(where: str, source: object, *, trust: bool) -> None:
    """Raise `InvalidConfiguration` for code that a file names, unless it is to be run.

    Files come from others, too; who names a Python file on the command line means it.
    """
    if not trust and isinstance(source, str) and MARK in source:
        reason = f"{where} names Python code to be run, {source}: --trust runs it"
        raise InvalidConfiguration("schedule", reason)


def with_imported(path: Path) -> tuple[Path, ...]:
    """A file, then those next to it that it imports, directly or not; none of bfpp itself."""
    file = path.resolve()
    files, waiting = dict[Path, None](), [file]
    while waiting:
        if (path := waiting.pop()) not in files:
            files[path] = None
            waiting += _imported_by(path, file.parent)
    return file, *sorted(files.keys() - {file})


def _is_users(module: str) -> bool:
    """True for the module of a user's file, or of one that it imports from its folder."""
    return module in _loaded or _origin(module) in _beside


def _origin(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__file__", None)


@contextmanager
def _importing_from_next_to(path: Path) -> Iterator[None]:
    """Make modules next to a file importable, and forget those of other folders by these names."""
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
    except (OSError, SyntaxError, ValueError):  # loading it reports why
        return
    for base, name in _imports(tree, path, folder):
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            place = base.joinpath(*parts[:depth])
            for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
                if file.is_file() and file.is_relative_to(folder):
                    yield file


def _imports(tree: ast.AST, path: Path, folder: Path) -> Iterator[tuple[Path, str]]:
    """Folders and names of the modules that a file imports."""
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
    """Pickle a schedule as the name that it was loaded by, or as `name`."""
    reference = schedule.source.rpartition(MARK)[2] or name
    return _again, (f"{path}:{reference}", schedule.parameters, schedule.source)


def _again(reference: str, parameters: dict[str, Any], source: str) -> Schedule:
    return replace(load_schedule(reference), **parameters, source=source)


def module_name(field: str, path: Path) -> str:
    """Name of the module of a file that was loaded for a field."""
    return f"bfpp_{field}_{path.stem}"


class _FromSource(SourceFileLoader):
    """A loader that compiles the text that is there.

    Python's takes bytecode of a file that was as large and written in the same second.
    """

    def path_stats(self, path: str) -> NoReturn:
        """No time or size that bytecode could be compared with."""
        raise OSError(path)


def named_in(field: str, path: Path, name: str) -> object:
    """The object of that name in the file, or `ABSENT`; raises whatever the file raises.

    Raises `InvalidConfiguration`, which blames `field`, if there is no such file.
    """
    own_name = module_name(field, path)
    loader = _FromSource(own_name, str(path.absolute()))
    spec = importlib.util.spec_from_file_location(own_name, path, loader=loader)
    if spec is None or spec.loader is None or not path.is_file():
        raise InvalidConfiguration(field, f"there is no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[own_name] = module  # where dataclasses look for the module of a class
    _loaded.add(own_name)
    with _importing_from_next_to(path), exit_as_error():
        spec.loader.exec_module(module)
    return getattr(module, name, ABSENT)


@contextmanager
def exit_as_error() -> Iterator[None]:
    """Make `sys.exit` in a user's code an error: it would end bfpp, and seem to have succeeded."""
    try:
        yield
    except SystemExit as error:
        if type(error) is not SystemExit:  # our own: a refused option, a signal that ends a run
            raise
        ended = RuntimeError(f"sys.exit({error.code!r}) would end bfpp")
        raise ended.with_traceback(error.__traceback__) from None


def naming_lines(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a worker; errors of a user's file name their line, as tracebacks stay."""
    try:
        with exit_as_error():
            return function(*arguments)
    except InvalidInput:
        raise
    except Exception as error:
        if line := line_at_fault(error):
            raise InvalidInput(f"{line}: {type(error).__name__}: {error}") from error
        raise


def line_at_fault(error: BaseException) -> str | None:
    """The line of a user's file that raised, as `mine.py, line 7`; None if it was elsewhere.

    What it calls may raise, other than modules of ours: that may be their fault.
    """
    line_of_user = None
    for frame, line in walk_tb(error.__traceback__):
        name = frame.f_globals.get("__name__", "")
        if name in _loaded:
            line_of_user = f"{frame.f_code.co_filename}, line {line}"
        elif name.partition(".")[0] == "bfpp":
            line_of_user = None
    return line_of_user

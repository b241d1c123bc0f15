"""Private names of other libraries may change with any version: bfpp uses none but those below.

They are looked for in imports, in attributes that no class of bfpp has, in names that are given as
text, and in what classes take from bases of other libraries.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from tests.helpers import ROOT

ALONE = {
    # argparse lists no parser's options or groups, fits no lists into lines, has no type of groups.
    "_actions", "_option_string_actions", "_action_groups", "_group_actions", "_split_lines",
    "_fill_text", "_ActionsContainer", "_ArgumentGroup",
    # torch says for no tensor whether it was written to, or whose memory it has.
    "_version", "_cdata",
    # It sees operators by this module alone, with what they write to.
    "_python_dispatch", "_pop_mode", "_push_mode", "_should_skip_dynamo", "_schema",
    # It has no other trees of tensors, nor tells what a backward pass asks for.
    "_pytree", "_execution_engine", "_C", "_will_engine_execute_node",
    # It makes groups with all processes, not with their members alone.
    "_world", "_new_process_group_helper",
    # Nor does a group say whose communicator others can be split from.
    "_get_backend",
    # Its runtime of given orders, which is what a backend of ours runs under.
    "_PipelineScheduleRuntime", "_load_csv",
    # Modules tell neither their hooks nor, soon enough, where their parameters are.
    "_forward_pre_hooks", "_parameters", "_buffers",
    # FP8 GEMMs with all choices, many norms in one kernel, updates that skip a bad step.
    "_scaled_mm", "_foreach_norm", "_step_supports_amp_scaling",
    # Whether it can compile at all.
    "_inductor", "_triton",
}  # fmt: skip
"""Names without a public twin: of the standard library and of torch, whose versions are pinned."""


@cache
def files() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in sorted((ROOT / "bfpp").rglob("*.py"))}


PRIVATE = re.compile(r"_[A-Za-z](\w*[^\W_])?$")
"""Not `__file__`, nor a name of `enum` that it means to be overridden, such as `_missing_`."""


DOCUMENTED = {"_asdict", "_exit", "_field_defaults", "_fields", "_make", "_replace"}
"""Of named tuples, whose public names are their fields; and `os._exit`."""


def is_private(name: str) -> bool:
    return PRIVATE.match(name) is not None and name not in DOCUMENTED


def imported(tree: ast.AST) -> Iterator[str]:
    """Private parts of what is imported from elsewhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(each.name for each in node.names)]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        else:
            continue
        if not names[0].startswith("bfpp"):
            yield from (part for name in names for part in name.split(".") if is_private(part))


def own_attributes(tree: ast.AST) -> Iterator[str]:
    """Names that classes of a module have, or give themselves."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for part in ast.walk(node):
                if isinstance(part, ast.FunctionDef):
                    yield part.name
                if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Store):
                    yield part.id if isinstance(part, ast.Name) else part.attr


@cache
def own() -> set[str]:
    return {name for tree in files().values() for name in own_attributes(tree)}


def used(tree: ast.AST) -> Iterator[str]:
    """Private attributes that no class of ours has, and private names as text alone.

    No class of this file has, but for those that one has of another.
    """
    here = {*own_attributes(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            known = own() if getattr(node.value, "id", None) in ("self", "cls") else here
            if node.attr not in known:
                yield node.attr
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "setattr"):
            for name in node.args[1:2]:
                if isinstance(name, ast.Constant) and is_private(str(name.value)):
                    yield str(name.value)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call):
            name = node.slice  # vars(module)["_name"]
            if isinstance(name, ast.Constant) and is_private(str(name.value)):
                yield str(name.value)


@cache  # the source of a class is looked for in all of its file
def members(base: type) -> set[str]:
    """Private names that a class has, or gives itself."""
    try:
        given = re.findall(r"self\.(\w+)", inspect.getsource(base))
    except (OSError, TypeError):  # written in C
        given = []
    return {name for name in [*vars(base), *given] if is_private(name)}


def inherited(module: object, tree: ast.AST) -> Iterator[str]:
    """Names that classes of a module use, or override, of bases from elsewhere."""
    for node in ast.walk(tree):
        kind = getattr(module, node.name, None) if isinstance(node, ast.ClassDef) else None
        if not isinstance(kind, type):
            continue
        bases = [base for base in kind.__mro__ if not base.__module__.startswith("bfpp")]
        theirs = set().union(*map(members, bases))
        for part in ast.walk(node):
            name = getattr(part, "name" if isinstance(part, ast.FunctionDef) else "attr", None)
            of_self = getattr(getattr(part, "value", None), "id", None) in ("self", "cls")
            if name in theirs and (of_self or isinstance(part, ast.FunctionDef)):
                yield name


def module_of(path: Path) -> object:
    """The module of a file; what runs when it is imported has no classes."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts).removesuffix(".__init__")
    return None if name == "bfpp.__main__" else import_module(name)


@pytest.fixture(scope="module")
def found() -> dict[str, set[str]]:
    """Private names of others, and the files that use them."""
    uses: dict[str, set[str]] = {}
    for path, tree in files().items():
        for name in [*imported(tree), *used(tree), *inherited(module_of(path), tree)]:
            uses.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return uses


def test_private_names_of_others_are_not_used(found: dict[str, set[str]]) -> None:
    assert {name: files for name, files in found.items() if name not in ALONE} == {}


def test_none_is_excepted_in_vain(found: dict[str, set[str]]) -> None:
    assert ALONE - found.keys() == set()


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from torch._inductor import exc", "_inductor"),
        ("import numba.core.runtime._nrt_python", "_nrt_python"),
        ("from multiprocessing.util import _exit_function", "_exit_function"),
        ("forkserver._forkserver.ensure_running()", "_forkserver"),
        ("vars(forkserver)['_forkserver']", "_forkserver"),
        ("getattr(forkserver, '_forkserver')", "_forkserver"),
        ("util._private = None", "_private"),
    ],
)
def test_uses_are_found(line: str, name: str) -> None:
    assert [*imported(ast.parse(line)), *used(ast.parse(line))] == [name]


def test_uses_by_heirs_are_found() -> None:
    class Module:
        class Heir(ast.NodeVisitor):
            pass

        class Parser(__import__("argparse").ArgumentParser):
            pass

    text = "class Parser:\n def options(self): return self._actions\n def _print_message(self): 0\n"
    assert {*inherited(Module, ast.parse(text))} == {"_actions", "_print_message"}

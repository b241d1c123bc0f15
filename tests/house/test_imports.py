"""Torch stays out of the core, and all is one package; who may import whom is a contract.

The contract is that of import-linter, in `pyproject.toml`: `make check` holds it.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import grimp
import pytest

from bfpp.executor.processes.launcher.children import PROGRAM
from tests.helpers import ROOT

SAME = "class Memory: ...\nclass Sharding: ...\n"

FLOORS = ("schedules", "traces", "sim", "executor")
"""Those that the top level shows as links, too."""


def test_every_library_stands_in_the_contract() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    listed = {name for each in contract["contracts"] for name in each.get("forbidden_modules", ())}
    graph = grimp.build_graph("bfpp", include_external_packages=True, cache_dir=None)
    imported = {name for name in graph.modules if graph.is_module_squashed(name)}
    assert "torch" in imported
    assert imported - sys.stdlib_module_names - listed == {"numpy"}


# Torch, whatever the imports of our imports do

IMPORT_ALL = """
import importlib, pkgutil, sys
def import_all(name):
    package = importlib.import_module(name)
    for module in pkgutil.iter_modules(getattr(package, "__path__", ()), name + "."):
        if not module.name.endswith("__main__") and module.name not in sys.argv[2:]:
            import_all(module.name)
import_all(sys.argv[1])
for name, module in sys.modules.items():
    print(name, getattr(module, "__file__", None))
"""


def modules(root: Path, package: str, *left_out: str) -> dict[str, str]:
    """Modules of a fresh process, and their files, once it has imported all of a package."""
    process = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, package, *left_out],
        env=os.environ | {"PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return dict(line.split(" ", 1) for line in process.stdout.splitlines())


def test_no_module_of_the_core_imports_torch() -> None:
    found = modules(ROOT, "bfpp", "bfpp.executor")
    assert {f"bfpp.{floor}" for floor in FLOORS} <= found.keys()
    assert "torch" not in found


def test_only_a_run_with_checkpoints_imports_what_torch_has_for_them() -> None:
    """As long as half of torch takes, in every process."""
    member, session = "bfpp.executor.processes.launcher.member", "bfpp.executor.run.session"
    run = f"import sys, {member}, {session}; print(*sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", run], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = process.stdout.split()
    assert "torch.distributed" in found
    assert "torch.distributed.checkpoint" not in found


def test_a_process_can_be_asked_where_it_is_before_torch_is_imported() -> None:
    """Modules that Python imports before the program begins: the packages around it."""
    run = f"import sys, {PROGRAM}.__main__; print('torch' in sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", run], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert process.stdout == "False\n"


@pytest.mark.parametrize("module", ["__init__.py", "hidden.py"])
def test_an_import_of_torch_would_be_seen(tmp_path: Path, module: str) -> None:
    (tmp_path / "torch.py").touch()
    (tmp_path / "innocent").mkdir()
    (tmp_path / "innocent/__init__.py").touch()
    assert "torch" not in modules(tmp_path, "innocent")
    (tmp_path / "innocent" / module).write_text("import between\n")
    (tmp_path / "between.py").write_text("import torch\n")
    assert "torch" in modules(tmp_path, "innocent")


# One package, though links show four of its folders at the top level


def homonyms(root: Path) -> set[str]:
    """The names that several classes of ours have."""
    files = (root / "bfpp").rglob("*.py")
    trees = (ast.parse(file.read_text()) for file in files)
    names = (
        node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    return {name for name, times in Counter(names).items() if times > 1}


def test_each_name_of_a_class_means_one_thing(tmp_path: Path) -> None:
    assert homonyms(ROOT) == set()
    for floor in FLOORS[:2]:
        (tmp_path / "bfpp" / floor).mkdir(parents=True)
        (tmp_path / "bfpp" / floor / "one.py").write_text(
            "class Memory: ...\nclass Sharding: ...\n"
        )
    assert homonyms(tmp_path) == {"Memory", "Sharding"}


def twice(found: Mapping[str, str]) -> list[str]:
    """The files of ours that are loaded as two modules."""
    files = Counter(Path(file).resolve() for file in found.values() if file != "None")
    return [
        str(file)
        for file, times in files.items()
        if times > 1 and file.is_relative_to(ROOT / "bfpp")
    ]


def test_no_module_is_loaded_under_two_names() -> None:
    found = modules(ROOT, "bfpp")
    assert twice(found) == []
    assert twice(found | {"schedules.columns": str(ROOT / "schedules" / "columns.py")}) != []


def test_a_user_s_own_modules_do_no_harm(tmp_path: Path) -> None:
    for floor in FLOORS:
        (tmp_path / f"{floor}.py").write_text("raise ImportError('not this one')\n")
    words = ("simulate", "gpipe", "--pp", "2", "--json")
    process = subprocess.run(
        [sys.executable, "-c", "from bfpp.command_line import main; main()", *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")

"""Who may import what, read from the source; and that torch stays out of the core.

Each package may import the standard library, numpy, itself and what the table
below names. A heavy library has one home; a path narrows it to a part of a
package. The checker is itself checked, on trees that break the rules.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ALLOWED = {
    "schedules": set[str](),
    "traces": {"schedules", "plotly"},
    "sim": {"schedules", "traces", "simpy", "numba"},
    "executor": {"schedules", "traces", "torch"},
    "bfpp": {"schedules", "traces", "sim", "executor", "rich"},
}
ALLOWED_WITHIN = {
    "schedules/validity": {"networkx"},
    "sim/executors": {"distributed", "submitit"},
    "sim/fit": {"scipy"},
    "executor/calibration/fitting": {"scipy"},
    "bfpp/found": {"pyarrow"},
}

WITHOUT_TORCH = ("bfpp", "schedules", "traces", "sim")


def imported(source: str, package: str) -> Iterator[str]:
    """The top-level names that a module imports, wherever in it and however written."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                yield from (alias.name.partition(".")[0] for alias in node.names)
            case ast.ImportFrom(level=0, module=str(module)):
                yield module.partition(".")[0]
            case ast.ImportFrom():
                yield package
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield module.partition(".")[0] or package


def forbidden_imports(root: Path) -> list[str]:
    """Every import below `root` that the table does not allow, as `file imports name`."""
    found = []
    for package, allowed in ALLOWED.items():
        usual = sys.stdlib_module_names | {"numpy", package} | allowed
        for file in sorted((root / package).rglob("*.py")):
            path = file.relative_to(root).as_posix()
            here = [
                more
                for part, more in ALLOWED_WITHIN.items()
                if path.startswith((f"{part}/", f"{part}."))
            ]
            names = set(imported(file.read_text(), package)) - usual.union(*here)
            found += [f"{path} imports {name}" for name in sorted(names)]
    return found


def test_packages_import_only_what_they_may() -> None:
    assert forbidden_imports(ROOT) == []


@pytest.mark.parametrize("package", WITHOUT_TORCH)
def test_the_checker_sees_the_packages(package: str) -> None:
    sources = [file.read_text() for file in (ROOT / package).rglob("*.py")]
    assert package in {name for source in sources for name in imported(source, package)}


BROKEN = [
    ("schedules/gpipe.py", "import torch", "torch"),
    ("schedules/gpipe.py", "import networkx as nx", "networkx"),
    ("schedules/lowering/passes.py", "from traces.timeline import Timeline", "traces"),
    ("schedules/validity/rules.py", "import simpy", "simpy"),
    ("schedules/steps.py", "def later():\n    from torch import nn", "torch"),
    ("schedules/steps.py", "if TYPE_CHECKING:\n    import sim", "sim"),
    ("traces/figures.py", "from sim import costs", "sim"),
    ("traces/figures.py", "from bfpp import main", "bfpp"),
    ("sim/search.py", "import executor.loop", "executor"),
    ("sim/figures.py", "import plotly.graph_objects", "plotly"),
    ("sim/engine.py", "importlib.import_module('torch.cuda')", "torch"),
    ("executor/loop.py", "from sim.costs import Costs", "sim"),
    ("executor/loop.py", "import simpy", "simpy"),
    ("bfpp/command_line.py", "__import__('torch')", "torch"),
    ("bfpp/command_line.py", "import plotly", "plotly"),
]


@pytest.mark.parametrize(("path", "source", "name"), BROKEN)
def test_the_checker_finds_a_forbidden_import(
    tmp_path: Path, path: str, source: str, name: str
) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(source)
    assert forbidden_imports(tmp_path) == [f"{path} imports {name}"]


def test_the_checker_accepts_what_the_table_allows(tmp_path: Path) -> None:
    sources = {
        "schedules/validity/order.py": "import networkx",
        "schedules/gpipe.py": "import json, numpy.typing\nfrom schedules import steps",
        "traces/figures.py": "import plotly.graph_objects\nfrom . import timeline",
        "sim/engine.py": "import simpy, numba\nfrom traces import Timeline",
        "executor/loop.py": "import torch.distributed",
        "bfpp/command_line.py": "import sim, traces, schedules, executor",
    }
    for path, source in sources.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source)
    assert forbidden_imports(tmp_path) == []


# Torch, whatever the imports of our imports do

IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
print("torch" in sys.modules)
"""


def imports_torch(root: Path, *packages: str) -> bool:
    """Whether a fresh process has torch once it has imported all of these packages."""
    environment = os.environ | {"PYTHONPATH": str(root)}
    process = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *packages],
        env=environment,
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()[-1] == "True"


def test_no_module_of_the_core_imports_torch() -> None:
    assert not imports_torch(ROOT, *WITHOUT_TORCH)


@pytest.mark.parametrize("module", ["__init__.py", "hidden.py"])
def test_an_import_of_torch_would_be_seen(tmp_path: Path, module: str) -> None:
    (tmp_path / "torch.py").touch()
    (tmp_path / "innocent").mkdir()
    (tmp_path / "innocent/__init__.py").touch()
    assert not imports_torch(tmp_path, "innocent")
    (tmp_path / "innocent" / module).write_text("import between\n")
    (tmp_path / "between.py").write_text("import torch\n")
    assert imports_torch(tmp_path, "innocent")

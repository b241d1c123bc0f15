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
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FRONT_DOOR = "bfpp"
ALLOWED = {
    "schedules": set[str](),
    "traces": {"bfpp.schedules", "plotly"},
    "sim": {"bfpp.schedules", "bfpp.traces", "simpy", "numba"},
    "executor": {"bfpp.schedules", "bfpp.traces", "torch", "safetensors"},
    FRONT_DOOR: {
        "bfpp.schedules", "bfpp.traces", "bfpp.sim", "bfpp.executor", "lazy_loader", "rich",
    },
}  # fmt: skip
"""By folder. What is imported of ours is named `bfpp.FOLDER`, and the front door `bfpp`."""

ALLOWED_WITHIN = {
    "schedules/graph": {"networkx"},
    "schedules/validity": {"networkx"},
    "sim/executors": {"distributed", "submitit"},
    "sim/synthesis/window": {"ortools"},
    "sim/fit": {"scipy"},
    "sim/least_squares": {"scipy"},
    "sim/loop_cache": {"llvmlite"},
    "executor/calibration/fitting": {"scipy"},
    "bfpp/figures": {"cairosvg"},
    "bfpp/search_results": {"pyarrow"},
    "bfpp/commands/completion": {"shtab"},
}
LAYERS = tuple(folder for folder in ALLOWED if folder != FRONT_DOOR)


def own_name(folder: str) -> str:
    """What the modules of a folder are imported as."""
    return folder if folder == FRONT_DOOR else f"{FRONT_DOOR}.{folder}"


def package_of(module: str) -> str:
    """The package that a module is of: one of ours by its folder, or another one."""
    first, _, rest = module.partition(".")
    layer = rest.partition(".")[0]
    return f"{first}.{layer}" if first == FRONT_DOOR and layer in LAYERS else first


def imported(source: str, package: str) -> Iterator[str]:
    """The packages that a module imports, wherever in it and however written."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                yield from (package_of(alias.name) for alias in node.names)
            case ast.ImportFrom(level=0, module=str(module)):
                yield from (package_of(f"{module}.{alias.name}") for alias in node.names)
            case ast.ImportFrom():
                yield package
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield package_of(module) or package


def forbidden_imports(root: Path) -> list[str]:
    """Every import below `root` that the table does not allow, as `file imports name`."""
    found = []
    for folder, allowed in ALLOWED.items():
        package = own_name(folder)
        usual = sys.stdlib_module_names | {"numpy", package} | allowed
        for file in sorted((root / folder).rglob("*.py")):  # links are not followed
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


@pytest.mark.parametrize("folder", LAYERS)
def test_the_checker_sees_the_packages(folder: str) -> None:
    package = own_name(folder)
    sources = [file.read_text() for file in (ROOT / folder).rglob("*.py")]
    assert package in {name for source in sources for name in imported(source, package)}


BROKEN = [
    ("schedules/gpipe.py", "import torch", "torch"),
    ("schedules/gpipe.py", "import networkx as nx", "networkx"),
    ("schedules/lowering/passes.py", "from bfpp.traces.timeline import Timeline", "bfpp.traces"),
    ("schedules/validity/rules.py", "import simpy", "simpy"),
    ("schedules/steps.py", "def later():\n    from torch import nn", "torch"),
    ("schedules/steps.py", "if TYPE_CHECKING:\n    import bfpp.sim", "bfpp.sim"),
    ("traces/figures.py", "from bfpp.sim import costs", "bfpp.sim"),
    ("traces/figures.py", "from bfpp import sim", "bfpp.sim"),
    ("traces/figures.py", "from bfpp import simulate", "bfpp"),
    ("traces/figures.py", "import bfpp", "bfpp"),
    ("sim/search.py", "from bfpp.command_line import main", "bfpp"),
    ("sim/search.py", "from schedules.steps import Step", "schedules"),
    ("sim/search.py", "import bfpp.executor.loop", "bfpp.executor"),
    ("sim/figures.py", "import plotly.graph_objects", "plotly"),
    ("sim/engine.py", "importlib.import_module('torch.cuda')", "torch"),
    ("executor/loop.py", "from bfpp.sim.costs import Costs", "bfpp.sim"),
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
        "schedules/gpipe.py": "import json, numpy.typing\nfrom bfpp.schedules import steps",
        "traces/figures.py": "import plotly.graph_objects\nfrom . import timeline",
        "sim/engine.py": "import simpy, numba\nfrom bfpp.traces import Timeline",
        "executor/loop.py": "import torch.distributed",
        "bfpp/command_line.py": "import bfpp.sim, lazy_loader\nfrom bfpp import traces, errors",
    }
    for path, source in sources.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source)
    assert forbidden_imports(tmp_path) == []


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
    """What a fresh process has loaded, and from where, once it has imported all of a package."""
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
    found = modules(ROOT, FRONT_DOOR, "bfpp.executor")
    assert {own_name(folder) for folder in ALLOWED} <= found.keys()
    assert "torch" not in found


def test_only_a_run_with_checkpoints_imports_what_torch_has_for_them() -> None:
    """As long as half of torch takes, in every process."""
    run = "import sys, bfpp.executor.processes.member, bfpp.executor.session; print(*sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", run], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = process.stdout.split()
    assert "torch.distributed" in found
    assert "torch.distributed.checkpoint" not in found


@pytest.mark.parametrize("module", ["__init__.py", "hidden.py"])
def test_an_import_of_torch_would_be_seen(tmp_path: Path, module: str) -> None:
    (tmp_path / "torch.py").touch()
    (tmp_path / "innocent").mkdir()
    (tmp_path / "innocent/__init__.py").touch()
    assert "torch" not in modules(tmp_path, "innocent")
    (tmp_path / "innocent" / module).write_text("import between\n")
    (tmp_path / "between.py").write_text("import torch\n")
    assert "torch" in modules(tmp_path, "innocent")


# One package, though its folders are links


def homonyms(root: Path) -> set[str]:
    """The names that several classes of ours have."""
    files = {file.resolve() for folder in ALLOWED for file in (root / folder).rglob("*.py")}
    trees = (ast.parse(file.read_text()) for file in files)
    names = (
        node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    return {name for name, times in Counter(names).items() if times > 1}


def test_each_name_of_a_class_means_one_thing(tmp_path: Path) -> None:
    assert homonyms(ROOT) == set()
    for folder in LAYERS[:2]:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "one.py").write_text("class Memory: ...\nclass Sharding: ...\n")
    assert homonyms(tmp_path) == {"Memory", "Sharding"}


def twice(found: Mapping[str, str]) -> list[str]:
    """The files of ours that are loaded as two modules."""
    files = Counter(Path(file).resolve() for file in found.values() if file != "None")
    return [
        str(file)
        for file, times in files.items()
        if times > 1 and any(file.is_relative_to(ROOT / folder) for folder in ALLOWED)
    ]


def test_no_module_is_loaded_under_two_names() -> None:
    found = modules(ROOT, FRONT_DOOR)
    assert twice(found) == []
    assert twice(found | {"schedules.steps": str(ROOT / "schedules" / "steps.py")}) != []


def test_a_user_s_own_modules_do_no_harm(tmp_path: Path) -> None:
    for folder in LAYERS:
        (tmp_path / f"{folder}.py").write_text("raise ImportError('not this one')\n")
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

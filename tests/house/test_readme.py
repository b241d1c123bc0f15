"""README's commands run from a wheel, and its figure is the tool's (`test_docs` runs the rest)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from contextlib import suppress
from pathlib import Path

import numpy
import pytest

from benchmarks.helpers.installations import copy_of
from bfpp.paper.figures import figure_4
from bfpp.paper.item import Folder
from docs.generate.sessions import Command, quick
from tests.helpers import ROOT

README = ROOT / "README.md"


def without_torch():
    """README's commands that need neither torch nor what commands with torch write."""
    for step in quick(README):
        if isinstance(step, Command) and step.words[0] == "bfpp":
            yield step.line


@pytest.fixture
def installed(tmp_path):
    """The path on which an environment finds a wheel of this tree, and all but torch."""
    source, environment = copy_of(ROOT, tmp_path / "source"), tmp_path / "environment"
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path]
    subprocess.run([*build, source], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    shutil.rmtree(source)
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True)
    (packages,) = environment.glob("lib/*/site-packages")
    for package in Path(numpy.__file__).parents[1].iterdir():
        if not re.match(r"(torch|bfpp|__editable__|pip|.*\.pth$)", package.name):
            with suppress(FileExistsError):
                (packages / package.name).symlink_to(package)
    found = [python, "-c", "import importlib.util as u; print(u.find_spec('torch'))"]
    assert subprocess.run(found, capture_output=True, text=True, check=True).stdout == "None\n"
    return environment / "bin"


@pytest.mark.slow
def test_the_wheel_harms_no_package_of_another_name_and_is_not_harmed(installed, tmp_path):
    """Packages on the index are called `executor` and `traces`; a user's own file `sim.py`."""
    python = installed / "python"
    (packages,) = installed.parent.glob("lib/*/site-packages")
    for name in ("executor", "traces"):
        (packages / name).mkdir(exist_ok=False)
        (packages / name / "__init__.py").write_text(f"whose = 'the {name} of others'\n")
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "sim.py").write_text("raise RuntimeError('this is mine')\n")
    check = (
        "import bfpp, executor, traces; print(executor.whose, traces.whose); "
        "print(bfpp.predict(bfpp.Experiment('1f1b')).timeline.step_time)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", check], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("the executor of others the traces of others\n33.0\n", "")


@pytest.mark.slow
def test_every_command_runs_from_a_wheel_without_torch_in_an_empty_folder(installed, tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = {**os.environ, "PATH": f"{installed}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    commands = list(without_torch())
    assert len(commands) >= 20
    for command in commands:
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stderr)
        assert "Traceback" not in done.stderr


def test_the_figure_is_what_the_tool_draws(tmp_path):
    figure_4.make(Folder(tmp_path))
    assert (tmp_path / "figure-4.svg").read_text() == (ROOT / "docs" / "schedules.svg").read_text()

"""Every command and every example of the README runs, and prints what it says."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import numpy
import pytest

from bfpp.command_line import main
from bfpp.paper import figure_4
from bfpp.schedules.steps import Schedule

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def sessions():
    """Each command of the README, and the lines printed below it."""
    lines = "".join(blocks("console")).splitlines()
    starts = [at for at, line in enumerate(lines) if line.startswith("$ ")]
    for at, until in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield lines[at].removeprefix("$ "), lines[at + 1 : until]


def test_every_command_runs(tmp_path, monkeypatch):
    """In order, in an empty folder: later ones read what earlier ones wrote."""
    monkeypatch.chdir(tmp_path)
    ran = 0
    for command, expected in sessions():
        words = shlex.split(command, comments=True)
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
            continue
        assert words[0] == "bfpp"
        printed = StringIO()
        target = words[words.index(">") + 1] if ">" in words else None
        with redirect_stdout(printed):
            assert main(words[1 : words.index(">") if target else None]) == 0, command
        if target:
            Path(target).write_text(printed.getvalue())
        if expected:
            assert printed.getvalue().splitlines() == expected
        if words[1:] == ["paper", "measurements"]:
            thin(Path("out/paper/measurements.csv"))
        ran += 1
    assert ran >= 10


def thin(table):
    """Leave a fourth of the rows: enough for a fit."""
    measured = table.read_text().splitlines(keepends=True)
    table.write_text("".join(measured[:1] + measured[1::4]))


def without_torch():
    """The commands that need neither torch nor what commands with torch write."""
    missing = set()
    for command, _ in sessions():
        words = shlex.split(command, comments=True)
        files = {word for word in words if word.startswith("out/")}
        if words[0] == "bfpp" and words[1] not in ("run", "calibrate") and not missing & files:
            yield command
        else:
            missing |= files


@pytest.fixture
def installed(tmp_path):
    """The path on which an environment finds a wheel of this tree, and all but torch."""
    source, environment = tmp_path / "source", tmp_path / "environment"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, tracked.stdout.split("\0")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name, follow_symlinks=False)
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


@pytest.mark.parametrize("code", blocks("python"))
def test_every_example_runs(code):
    names = {}
    with redirect_stdout(StringIO()):
        exec(compile(code, "README.md", "exec"), names)
    assert "timeline" in names or issubclass(names["Mine"], Schedule)


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_the_figure_is_what_the_tool_draws(tmp_path):
    figure_4.make(tmp_path)
    assert (tmp_path / "figure-4.svg").read_text() == (ROOT / "docs" / "schedules.svg").read_text()

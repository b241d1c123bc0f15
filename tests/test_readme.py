"""Every command and every example of the README runs, and prints what it says."""

from __future__ import annotations

import re
import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from bfpp.command_line import main
from bfpp.paper import figure_4
from schedules.steps import Schedule

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
    """In order, in one folder: later ones read what earlier ones wrote."""
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    measured = (ROOT / "bfpp" / "paper" / "measurements.csv").read_text().splitlines(keepends=True)
    Path("measured.csv").write_text("".join(measured[:1] + measured[1::4]))
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
        ran += 1
    assert ran >= 10


@pytest.mark.parametrize("code", blocks("python"))
def test_every_example_runs(code):
    names = {}
    with redirect_stdout(StringIO()):
        exec(compile(code, "README.md", "exec"), names)
    assert "timeline" in names or isinstance(names["SCHEDULE"], Schedule)


def test_every_link_leads_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_the_figure_is_what_the_tool_draws(tmp_path):
    figure_4.make(tmp_path)
    assert (tmp_path / "figure-4.svg").read_text() == (ROOT / "docs" / "schedules.svg").read_text()

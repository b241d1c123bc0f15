"""The examples run, each in a folder of its own, and say something."""

from __future__ import annotations

import runpy

import pytest

from tests.helpers import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) >= 3


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "examples").glob("*.toml")),
    ids=lambda path: path.stem,
)
def test_an_experiment_can_be_simulated(path, bfpp):
    code, out, err = bfpp("simulate", path)
    assert (code, err) == (0, "")
    assert "step time" in out

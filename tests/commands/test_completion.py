"""Shells complete commands, options and names; and the command runs as a module."""

from __future__ import annotations

import runpy
import subprocess
import sys

import pytest

from bfpp.terminal.command_table import COMMANDS


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "bfpp.bash"
    text = subprocess.run(
        [sys.executable, "-m", "bfpp", "completion", "bash"], capture_output=True, check=True
    ).stdout
    path.write_bytes(text)
    return path


COMPLETED = {
    "explai": {"explain"},
    "simulate bread": {"breadth-first"},
    "simulate gpipe --microbatches 3 --recompu": {"--recompute"},
    "simulate gpipe --model llama3-7": {"llama3-70b"},
    "simulate gpipe --cluster dgx-h": {"dgx-h100", "dgx-h200"},
    "run gpipe --backend cu": {"cuda"},
}


@pytest.mark.parametrize("line", COMPLETED)
def test_bash_completes(script, line):
    words = ["bfpp", *line.split()]
    asked = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _shtab_bfpp"
    told = f"source {script}; {asked}; echo ${{COMPREPLY[@]}}"
    found = subprocess.run(["bash", "-c", told], capture_output=True, text=True, check=True)
    assert set(found.stdout.split()) == COMPLETED[line]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_every_command(bfpp, shell):
    code, out, _ = bfpp(f"completion {shell}")
    assert code == 0
    assert all(command in out for command in COMMANDS)


def test_the_package_runs_as_the_command(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "bfpp.__main__", raising=False)
    monkeypatch.setattr(sys, "argv", ["bfpp", "orders", "gpipe", "--pp", "1"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("bfpp", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("0F0,")

"""`bfpp study`: one line for what cannot be, and what a folder holds, reported."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from bfpp.api.study.journal import NAME
from tests.helpers.studies import measured, written


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "grid.toml")


def test_before_it_starts_it_says_what_it_will_do_and_how_long_that_takes(bfpp):
    code, out, err = bfpp("study grid.toml --out o --dry-run")
    assert (code, err) == (0, "bfpp study: will take 1 minute\n")
    assert "A study: 4 cells" in out
    assert not list(Path("o").iterdir())


def test_what_is_measured_is_reported_and_drawn_again(bfpp):
    measured(Path("grid.toml"), Path("o"), {0: [1.0, 1.2], 1: [3.0], 2: [2.0], 3: [2.5]})
    code, out, err = bfpp("study grid.toml --out o --report")
    assert code == 0, err
    assert "4 of 4 cells are measured" in out
    assert "In 2 of 2 groups, the schedule predicted best is the best." in out
    rows = list(csv.DictReader(Path("o/cells.csv").read_text().splitlines()))
    assert [float(row["measured"]) for row in rows] == pytest.approx([1.1, 3.0, 2.0, 2.5])
    page = Path("o/index.html").read_bytes()
    assert b"Rankings of schedules" in page
    Path("o/index.html").unlink()
    assert bfpp("study grid.toml --out o --report")[0] == 0
    assert Path("o/index.html").read_bytes() == page


def test_measurements_are_not_overwritten_nor_gone_on_with_unasked(bfpp):
    measured(Path("grid.toml"), Path("o"), {0: [1.0]})
    kept = Path("o", NAME).read_bytes()
    code, _, err = bfpp("study grid.toml --out o --force")
    assert (code, err) == (
        2, "bfpp study: --out: o/steps.jsonl holds 1 repetitions: --resume goes on\n"
    )  # fmt: skip
    assert Path("o", NAME).read_bytes() == kept


@pytest.mark.parametrize(
    ("hosts", "reason"),
    [
        (
            {"where": "torchrun"},
            "where is torchrun: torchrun is to start it",
        ),
        ({"where": "ssh", "names": ["a", "b"]}, "where is ssh: --job writes what starts it"),
        ({"where": "elsewhere"}, "hosts: where: 'elsewhere' is not one of here, namespaces"),
    ],
)
def test_hosts_that_cannot_be_are_one_line(bfpp, hosts, reason):
    written(Path("grid.toml"), hosts=hosts)
    code, _, err = bfpp("study grid.toml --out o")
    assert (code, err.count("\n")) == (2, 1)
    assert reason in err


def test_code_that_a_study_names_is_not_run_unasked(bfpp):
    """With `--trust` it is, and its schedule is a cell like others."""
    base = "from bfpp.schedules.families.gpipe import GPipe"
    body = "class Mine(GPipe):\n    pass"
    touch = "from pathlib import Path\nPath('ran').touch()"
    Path("mine.py").write_text("\n".join((base, body, touch)) + "\n")
    written(Path("grid.toml"), experiment={"schedule": ["mine.py:Mine"], "pp": 2})
    code, _, err = bfpp("study grid.toml --out o --dry-run")
    assert (code, err.count("\n")) == (2, 1)
    assert "grid.toml names Python code to be run, mine.py:Mine: --trust runs it" in err
    assert not Path("ran").exists()
    code, out, err = bfpp("study grid.toml --out o --dry-run --trust")
    assert (code, Path("ran").exists()) == (0, True), err
    assert "1 cell" in out


def test_a_job_is_of_hosts_that_others_start(bfpp):
    code, _, err = bfpp("study grid.toml --out o --job job.sh")
    assert (code, err) == (
        2, "bfpp study: --job: is for hosts where is ssh, slurm, kubernetes, not here\n"
    )  # fmt: skip
    written(Path("grid.toml"), hosts={"where": "slurm", "count": 2})
    code, _, err = bfpp("study grid.toml --out o --job job.sbatch")
    assert (code, err) == (0, "wrote job.sbatch\n")
    assert (
        f"{Path.cwd() / 'grid.toml'} --out {Path.cwd() / 'o'} --resume"
        in Path("job.sbatch").read_text()
    )


def test_what_a_runtime_cannot_run_is_said_before_anything_is_run(bfpp):
    grid = {"pp": 2, "microbatches": 4}
    torch = {"schedule": "chimera", **grid, "backend": "torch-pipelining"}
    written(Path("grid.toml"), experiment=[{"schedule": "gpipe", **grid}, torch])
    code, _, err = bfpp("study grid.toml --out o")
    assert code == 2
    assert "chimera, 2, 4, torch-pipelining: copies: PyTorch's runtime has one copy" in err
    assert len(Path("o", NAME).read_text().splitlines()) == 1


def test_namespaces_need_root(bfpp, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda _: "/sbin/ip")
    written(Path("grid.toml"), hosts={"where": "namespaces", "count": 2})
    err = bfpp("study grid.toml --out o")[2]
    assert err.endswith("bfpp study: hosts: only root can make namespaces\n")


@pytest.mark.usefixtures("forked_processes")
def test_a_study_runs_and_goes_on_where_it_was_ended(bfpp):
    backends = ["cpu", "torch-pipelining"]
    grid = {"schedule": ["gpipe", "1f1b"], "pp": 2, "microbatches": 4, "backend": backends}
    rule = {"steps": 2, "warm_up": 1, "least": 1, "most": 1}
    written(Path("grid.toml"), experiment=grid, measuring=rule)
    code, out, err = bfpp("study grid.toml --out o --json")
    assert code == 0, err
    cells = json.loads(out)["cells"]
    assert [cell["values"]["backend"] for cell in cells] == backends * 2
    # PyTorch's runtime does a step at once, and tells no times of transfers.
    assert [bool(cell["parts"]) for cell in cells] == [True, False] * 2
    assert len([*Path("o/timelines").iterdir()]) == 2
    # Four layers asleep: a forward and a backward pass of 2 x 2 and 2 x 4 ms for each of 4
    # micro-batches, and a first and a last one on the other rank.
    for cell in cells:
        assert cell["measured"] > 5 * 0.012
        assert 5 * 0.012 < cell["predicted"] < 0.2
    assert "cells predicted" in err
    written(Path("grid.toml"), experiment=grid, measuring=rule | {"least": 2, "most": 2})
    lines = Path("o", NAME).read_text().splitlines()
    Path("o", NAME).write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:20])
    code, out, err = bfpp("study grid.toml --out o --json --resume")
    assert code == 0, err
    assert [cell["repetitions"] for cell in json.loads(out)["cells"]] == [2] * 4
    assert Path("o", NAME).read_text().startswith("\n".join(lines[:-1]))

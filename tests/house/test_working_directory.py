"""Whoever works in a folder of somebody else's runs none of its files unless they are named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bfpp.sim.search.workers import SAFE_PATH, executor
from tests.helpers.listening import beyond_loopback

TRAPS = (
    "bfpp", "dask", "distributed", "multiprocessing", "numpy", "opt_einsum", "signal",
    "sitecustomize", "submitit", "torch", "tqdm", "triton", "usercustomize", "yaml",
)  # fmt: skip
"""Modules that some process of ours imports, or tries to."""

SMALL = "layers = 4\nhidden = 1024\nheads = 16\nsequence = 512\nvocabulary = 1000\n"
SIZES = (
    "--pp", "1", "--microbatches", "1", "--layers", "1", "--hidden", "16",
    "--heads", "1", "--context", "4", "--steps", "1",
)  # fmt: skip
SEARCH = (
    "search", "--model", "small.toml", "--cluster", "dgx1-v100", "--gpus", "4",
    "--batch", "4", "--workers", "2",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: each of its modules leaves a file that says by whom it was run."""
    for name in TRAPS:
        (tmp_path / f"{name}.py").write_text(
            f"import os, sys\nopen({str(tmp_path / 'run')!r}, 'a').write(f'{name} {{sys.argv}}\\n')"
            "\nraise SystemExit('a file of the working directory was run')\n"
        )
    (tmp_path / "small.toml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    monkeypatch.delenv(SAFE_PATH, raising=False)
    return tmp_path


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """A command in the working directory, where bfpp is installed."""
    script = Path(sys.executable).with_name("bfpp")
    start = [script] if script.exists() else [sys.executable, "-P", "-m", "bfpp"]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [*start, *words], env=kept, capture_output=True, text=True, timeout=120, check=False
    )


def has_run(folder: Path) -> str:
    """Which of the files were run, and by whom."""
    return (folder / "run").read_text() if (folder / "run").exists() else ""


def test_no_file_of_the_working_directory_is_run_unless_it_is_named(folder: Path) -> None:
    """One that is named may import those next to it."""
    (folder / "beside.py").write_text("from bfpp.schedules import find_schedule\n")
    (folder / "mine.py").write_text("from beside import find_schedule\nX = find_schedule('gpipe')")
    done = command("run", "mine.py:X", *SIZES)
    assert (done.returncode, has_run(folder)) == (0, ""), done.stderr


def test_no_worker_of_a_search_runs_one(folder: Path) -> None:
    done = command(*SEARCH)
    assert (done.returncode, has_run(folder)) == (0, ""), done.stderr


def test_the_module_as_a_program_looks_elsewhere_too(folder: Path) -> None:
    """Python itself puts the working directory first for `python -m bfpp`."""
    for name in ("bfpp", "signal", "multiprocessing", "torch"):
        (folder / f"{name}.py").rename(folder / f"{name}.kept")
    done = subprocess.run(
        [sys.executable, "-m", "bfpp", *SEARCH],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, has_run(folder)) == (0, ""), done.stderr


OF_WORKER = "__import__('sys').path, __import__('os').getpid()"
"""Where a worker finds modules, and its process id."""


@pytest.mark.parametrize("name", ["local", "slurm", "dask"])
def test_workers_do_not_look_for_modules_there(name: str, folder: Path) -> None:
    package = {"slurm": "submitit", "dask": "distributed"}.get(name)
    if package:
        pytest.importorskip(package)
    with executor(name, 1) as workers:
        path, pid = workers.submit(eval, OF_WORKER).result()
        if sys.platform == "linux":
            assert beyond_loopback([pid, os.getpid()]) == set()
    assert has_run(folder) == ""
    assert not {"", ".", str(folder)} & {*path}
    assert SAFE_PATH not in os.environ

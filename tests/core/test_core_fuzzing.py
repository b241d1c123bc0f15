"""No arrays, whatever is in them, end the process: functions of the core return, or raise."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from bfpp.core.synthesis.annealing import anneal
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.synthesis import synthesize
from bfpp.sim.synthesis.search.annealing import table_of
from tests.core.synthesis.test_annealing import on_two_ranks
from tests.helpers.core_calls import declared, recording
from tests.helpers.sanitizers import sanitized_core, sanitizing

ROOT = Path(__file__).parents[2]
FEW, MANY, FRESH = 60, 2000, 5000
"""Calls of each function."""


def fuzzed(calls: Path, names: list[str], examples: int, library: Path | None = None) -> None:
    """Calls these functions in a process, which is to end well."""
    seed, settings = 0, {}
    if os.environ.get("HYPOTHESIS_PROFILE") == "fresh":
        seed, examples = Random().randrange(2**32), FRESH
    given = ["--seed", str(seed), "--examples", str(examples), "--calls", str(calls), *names]
    if library:
        given += ["--library", str(library)]
        settings = sanitizing()
    command = [sys.executable, "-m", "tests.helpers.core_fuzzing", *given]
    run = subprocess.run(
        command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True
    )
    made = run.stdout.splitlines()
    assert run.returncode == 0, f"{run.returncode} in {made[-1:]} of seed {seed}: {run.stderr}"
    assert len(made) == examples * len(names)


@pytest.fixture(scope="module")
def some_calls(tmp_path_factory) -> Path:
    """Those of a small prediction and of a short search for an order."""
    path = tmp_path_factory.mktemp("calls") / "calls.pickle"
    with recording() as calls:
        synthesize(Experiment("1f1b", pp=2, microbatches=4), memory_limit=1.5, seconds=0.1)
        table, lengths = table_of(on_two_ranks(), [[0, 0, 2, 2], [1, 3, 1, 3]])
        anneal(on_two_ranks().arrays, table, lengths, 20, 1.0, 0.1, 0)
        given = {"pp": 2, "dp": 2, "tp": 8, "model": "bert-6.6b", "cluster": "dgx1-v100"}
        experiment = Experiment("1f1b", microbatches=4, **given)
        simulate(experiment.graph(), experiment.costs)
    path.write_bytes(pickle.dumps(calls.of))
    return path


def test_the_process_lives(some_calls: Path) -> None:
    fuzzed(some_calls, [*declared()], FEW)


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory) -> Path:
    """The core with sanitizers, which see what is read or written beyond an array."""
    return sanitized_core(tmp_path_factory.mktemp("core"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*declared()])
def test_sanitizers_find_nothing(calls_of_tests: Path, sanitized: Path, name: str) -> None:
    fuzzed(calls_of_tests, [name], MANY, sanitized)


def test_a_process_that_dies_is_seen(some_calls: Path) -> None:
    with pytest.raises(AssertionError, match="KeyError: 'nothing'"):
        fuzzed(some_calls, ["nothing"], FEW)

"""Calls of the core, recorded once for the tests that make them again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
OTHERS = [f"--ignore={HERE / name}.py" for name in ("test_sanitizers", "test_core_fuzzing")]


@pytest.fixture(scope="session")
def calls_of_tests(tmp_path_factory) -> Path:
    """A pickled file of what the tests of this folder call, with malformed arrays, too."""
    path = tmp_path_factory.mktemp("calls") / "calls.pickle"
    command = [sys.executable, "-m", "pytest", "-p", "tests.helpers.core_calls", HERE, *OTHERS]
    settings = {"BFPP_CORE_CALLS": str(path), "BFPP_SLOW": "0"}
    subprocess.run(command, cwd=ROOT, env=os.environ | settings, check=True)
    return path

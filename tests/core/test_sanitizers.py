"""The core under sanitizers: calls that the tests of this folder make, by a C program."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from bfpp.core.sources import SOURCE
from tests.helpers.core_calls import Call, declared
from tests.helpers.core_driver import file_of, program
from tests.helpers.sanitizers import MEMORY, THREADS, build

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def calls(calls_of_tests: Path) -> list[Call]:
    """Some of each function."""
    found: dict[str, list[Call]] = pickle.loads(calls_of_tests.read_bytes())
    assert found.keys() == declared().keys(), "each function has a test in this folder"
    return [call for each in found.values() for call in each]


@pytest.mark.parametrize(
    ("sanitizers", "threads"), [(MEMORY, 1), (THREADS, 4)], ids=["memory", "threads"]
)
def test_calls_end_as_recorded_and_sanitizers_find_nothing(
    calls, tmp_path, sanitizers: str, threads: int
) -> None:
    """Memory and undefined behaviour; with several threads at once, that they share no state."""
    source, target, file = tmp_path / "driver.c", tmp_path / "driver", tmp_path / "calls"
    source.write_text(program())
    build(target, sanitizers, str(source), "-pthread")
    file.write_bytes(file_of(calls))
    run = subprocess.run([target, file, str(threads)], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


ZIG = (sys.executable, "-m", "ziglang", "cc", "-std=c11", "-O2", "-ffp-contract=off")
ARM = ("-target", "aarch64-linux-musl", "-mcpu=baseline", "-static")


@pytest.mark.skipif(
    not shutil.which("qemu-aarch64") or find_spec("ziglang") is None,
    reason="runs on an emulated ARM processor: needs ziglang, and Debian's qemu-user",
)
def test_an_arm_processor_computes_the_same(calls, tmp_path) -> None:
    """To rounding: logarithms are those of another C library."""
    source, target, file = tmp_path / "driver.c", tmp_path / "driver", tmp_path / "calls"
    source.write_text(program())
    file.write_bytes(file_of(calls))
    sources = map(str, sorted(SOURCE.rglob("*.c")))
    flags = [*ARM, "-Wno-vla-parameter", "-I", str(SOURCE), str(source), *sources]
    subprocess.run([*ZIG, *flags, "-o", str(target), "-lm"], check=True)
    run = subprocess.run(
        ["qemu-aarch64", target, file, "1", "1e-14"], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")

"""The core under sanitizers, in a C program that repeats calls: recorded, drawn, and damaged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

from bfpp.command_line import main
from bfpp.core import replay
from bfpp.core.sources import SOURCE
from tests.helpers import core_calls

MODEL = "--model bert-52b --cluster dgx1-v100 --pp 8 --tp 4"
COMMANDS = (
    "simulate 1f1b --pp 4 --transfer 0.1",
    f"simulate breadth-first {MODEL} --dp 2 --loops 4 --microbatches 8 --sharding fsdp",
    "explain depth-first --pp 4 --loops 4 --transfer 0.5 --set transfer=x0.5",
    "schedule --pp 4 --microbatches 8 --memory-limit 3 --seconds 1",
    "search --model bert-6.6b --cluster dgx1-v100 --gpus 8 --batch 16 --workers 1 --fix tp=2",
)
SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
GCC = ("gcc", "-O1", "-g")
ZIG = (sys.executable, "-m", "ziglang", "cc", "-O2", "-mcpu=baseline")
DRAWN, DAMAGED, THREADS = 2000, 200, 4

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("gcc"), reason="compiles with gcc's sanitizers"),
]


@pytest.fixture(scope="module")
def recorded():
    """Calls of every function of the core."""
    calls: list[core_calls.Call] = []
    with core_calls.recorded(calls):
        for command in COMMANDS:
            assert main(command.split()) == 0
        sweep()
    assert {call.name for call in calls} == core_calls.FUNCTIONS.keys()
    return calls


def sweep():
    """Two tasks on a lane, and a flow that waits for both and for the peer's lane."""
    narrow, wide = partial(np.array, dtype=np.int32), partial(np.array, dtype=np.int64)
    start, end = np.zeros(3), np.zeros(3)
    costs = np.array([1.0, 2.0, 0.5]), np.array([0.0, 0.0, 6.0]), narrow([[0, 1]] * 3), np.ones(2)
    lanes = narrow([0, 0, 1]), narrow([-1, -1, 0])
    assert not replay.sweep(*lanes, wide([0, 0, 1, 3]), narrow([0, 0, 1]), costs, 2, start, end)
    assert [*start, *end] == [0, 1, 3, 1, 3, 9.5]


@pytest.fixture
def program(tmp_path):
    """Compiles the program; runs it on calls: exit code and what it says."""

    def run(calls, *flags, compiler=GCC, runner=(), tolerance=0.0, threads=1):
        file, binary = core_calls.written(calls, tmp_path / "calls"), tmp_path / "program"
        files = core_calls.sources(tmp_path)
        command = [*compiler, "-std=c11", "-ffp-contract=off", f"-I{SOURCE}", *flags, *files]
        subprocess.run([*command, "-o", binary, "-lm", "-pthread"], check=True)
        done = subprocess.run(
            [*runner, binary, file, str(tolerance), str(threads)],
            env=os.environ | {"ASAN_OPTIONS": "allocator_may_return_null=1"},
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_what_commands_call_is_clean_and_comes_out_the_same(recorded, program, sanitizer):
    threads = THREADS if sanitizer == "thread" else 1
    said = program(recorded, *SANITIZERS[sanitizer], threads=threads)
    assert said == (0, f"{len(recorded) * threads} calls, 0 differ\n")


def test_no_arrays_make_it_read_or_write_beyond_them(recorded, program):
    random = np.random.default_rng(0)
    calls = [*core_calls.drawn(random, DRAWN)]
    calls += [core_calls.damaged(call, random) for call in recorded for _ in range(DAMAGED)]
    assert program(calls, *SANITIZERS["address"]) == (0, f"{len(calls)} calls, 0 differ\n")


@pytest.mark.skipif(
    not shutil.which("qemu-aarch64") or find_spec("ziglang") is None,
    reason="runs on an emulated ARM processor: needs ziglang, and Debian's qemu-user",
)
def test_an_arm_processor_computes_the_same(recorded, program):
    """To rounding: logarithms are those of another C library."""
    target = ("-target", "aarch64-linux-musl", "-static")
    said = program(recorded, *target, compiler=ZIG, runner=["qemu-aarch64"], tolerance=1e-14)
    assert said == (0, f"{len(recorded)} calls, 0 differ\n")


def test_a_difference_would_be_seen(program):
    random = np.random.default_rng(0)
    (drawn,) = core_calls.drawn(random, 1)
    wrong = core_calls.Call(drawn.name, drawn.arguments, 12345, drawn.arguments)
    code, said = program([wrong])
    assert (code, said.splitlines()[0]) == (1, "1 calls, 1 differ")

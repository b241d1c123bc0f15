"""Loops come from disk; compiling says so if it takes long, and the collector is off meanwhile."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
from functools import partial
from threading import Event

import numba
import pytest
from numba.core import caching, event

from bfpp.sim.engines.loops import machine_code
from bfpp.sim.engines.loops.loop_cache import LoopCache
from bfpp.sim.engines.loops.machine_code import CLEAR, LINE, CompileListener

LOOPS = """
import sys
import numpy as np
from bfpp.sim.engines.loops.machine_code import machine_code

@machine_code()
def ones(count):
    return np.zeros(count) + 1

@machine_code()
def total(count):
    return ones(count).sum()

print(len(ones(3)), *ones.stats.cache_hits.values(), "numba.typed.typeddict" in sys.modules)
print(*(total(int(word)) for word in sys.argv[1:]), *ones.stats.cache_hits.values())
"""
"""A loop, and another that calls it; tables of the types of dictionaries are for compiling."""


class Terminal(io.StringIO):
    """A terminal that knows when it has been written to."""

    def __init__(self) -> None:
        super().__init__()
        self.written = Event()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.written.set()


class Waiting:
    """A timer that only records for how long it would wait."""

    def __init__(self, seconds: float, waited: list[float]) -> None:
        self.start = lambda: waited.append(seconds)

    def cancel(self) -> None:
        pass

    join = cancel


def test_a_long_compilation_is_said_once(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setattr(machine_code, "PATIENCE", 0.01)
    listener = CompileListener()
    for _ in range(2):
        listener.on_start(None)
        assert terminal.written.wait(timeout=60)
        listener.on_end(None)
    assert terminal.getvalue() == f"{CLEAR}{LINE}\n"


def test_short_ones_are_not_but_together_they_are_long(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(machine_code, "PATIENCE", 2.5)
    monkeypatch.setattr(machine_code, "monotonic", lambda: next(clock))
    listener, waited = CompileListener(), []
    monkeypatch.setattr(machine_code, "Timer", lambda seconds, _: Waiting(seconds, waited))
    for _ in range(4):
        listener.on_start(None)
        listener.on_end(None)
    assert waited == [2.5, 1.5, 0.5]


def test_nothing_is_said_but_on_a_terminal(capsys):
    machine_code.say()
    assert not capsys.readouterr().err


def test_the_collector_rests_while_numba_compiles():
    class Recorded(event.Listener):
        def on_start(self, _):
            collects.append(gc.isenabled())

        def on_end(self, _):
            pass

    collects = []
    with event.install_listener("numba:compile", Recorded()):
        assert numba.njit(lambda number: number + 1)(1) == 2
    assert collects == [False]
    assert gc.isenabled()


def test_loops_are_compiled_where_nothing_can_be_kept(monkeypatch):
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    assert machine_code.machine_code()(lambda number: number + 1)(1) == 2


def cut_short(ending, folder):
    for path in folder.glob(f"*/*.{ending}"):
        os.truncate(path, path.stat().st_size // 2)


def exchanged(folder):
    one, other = folder.glob("*/*.nbc")
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


@pytest.mark.parametrize("harm", [partial(cut_short, "nbi"), partial(cut_short, "nbc"), exchanged])
def test_what_is_kept_wrongly_is_compiled_again(harm, monkeypatch, tmp_path):
    """As after a crash, or where two processes wrote what they had compiled at the same time."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def hits():
        loop = machine_code.machine_code()(abs_of)
        assert (loop(-3), loop(-3.5)) == (3, 3.5)
        return sum(loop.stats.cache_hits.values())

    assert (hits(), hits()) == (0, 2)
    harm(tmp_path)
    assert (hits(), hits()) == (0, 2)


def test_loops_are_compiled_where_there_is_no_room_to_keep_them(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    loop = machine_code.machine_code()(abs_of)
    for path in tmp_path.iterdir():  # a file can be put in the place of no folder
        (path / f"{loop._cache._impl.filename_base}.nbi").mkdir()
    assert loop(-3) == 3


def test_kept_loops_are_loaded_without_what_compiling_needs(tmp_path):
    """And another that calls one is compiled with it, as if this one had been compiled, too."""
    (tmp_path / "loops.py").write_text(LOOPS)
    path = os.pathsep.join([str(tmp_path), *sys.path])

    def run(*words: str) -> list[str]:
        return subprocess.run(
            [sys.executable, "-m", "loops", *words],
            env=os.environ | {"PYTHONPATH": path, "NUMBA_CACHE_DIR": str(tmp_path / "kept")},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.splitlines()

    assert run() == ["3 True", ""]
    assert run("4") == ["3 1 False", "4.0 1"]
    assert run("4", "5") == ["3 1 False", "4.0 5.0 1"]


def test_the_installed_numba_is_one_that_loads_loops_without_it(monkeypatch):
    """With a later one, `KNOWN` is raised if the test above passes with it."""
    assert isinstance(machine_code.machine_code()(abs_of)._cache, LoopCache)
    monkeypatch.setattr(machine_code, "KNOWN", ((0, 0), (0, 0)))
    assert type(machine_code.machine_code()(abs_of)._cache) is caching.FunctionCache


def abs_of(number):
    return abs(number)

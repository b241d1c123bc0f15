"""The fast engine compiles its loops once a process has used them enough."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from bfpp.schedules import Layout, build_graph
from bfpp.sim import compiled_engine, kernels
from bfpp.sim.abstract import AbstractCosts

COMPILED = SimpleNamespace(sweep=object(), replay=object())


@pytest.fixture
def loops(monkeypatch):
    monkeypatch.setattr(compiled_engine, "COMPILE_FROM", 100)
    monkeypatch.setattr(compiled_engine, "UNCOMPILED", {"sweep": 1, "replay": 10})
    monkeypatch.setattr(compiled_engine, "_compiled_kernels", lambda: COMPILED)
    return compiled_engine._Loops()


def test_a_large_graph_is_compiled_for_at_once(loops):
    assert loops.get("sweep", 100) is COMPILED.sweep


def test_small_graphs_are_not_but_many_are(loops):
    assert [loops.get("sweep", 40) for _ in range(4)] == [kernels.sweep] * 2 + [COMPILED.sweep] * 2


def test_a_replay_counts_for_more(loops):
    assert loops.get("replay", 9) is kernels.replay
    assert loops.get("sweep", 9) is kernels.sweep
    assert loops.get("replay", 1) is COMPILED.replay


def test_compiled_or_not_the_times_are_the_same(monkeypatch):
    graph = build_graph("depth-first", Layout(4, 8, 4))
    costs = AbstractCosts(transfer=0.1).costs(graph)
    results = []
    for compile_from in (10**9, 0):
        monkeypatch.setattr(compiled_engine, "COMPILE_FROM", compile_from)
        results.append(compiled_engine.times(graph, costs))
    np.testing.assert_array_equal(*results)

"""The fast engine compiles its loops once a process has used them enough."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import bfpp
from bfpp.schedules import Layout, build_graph
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines import compiled_engine, compiled_lowering
from bfpp.sim.engines.loops import compiling, kernels
from bfpp.sim.experiment.experiment import Experiment

COMPILED = SimpleNamespace(sweep=object(), replay=object())


@pytest.fixture
def work(monkeypatch):
    monkeypatch.setattr(compiling, "COMPILE_FROM", 100)
    monkeypatch.setattr(compiling, "compiled", {kernels: COMPILED}.get)
    return compiling.CompileBudget()


def test_a_large_graph_is_compiled_for_at_once(work):
    assert work.loop(kernels, "sweep", 100) is COMPILED.sweep
    assert work.pays


def test_small_graphs_are_not_but_many_are(work):
    loops = [work.loop(kernels, "sweep", 40) for _ in range(4)]
    assert loops == [kernels.sweep] * 2 + [COMPILED.sweep] * 2


def test_all_loops_count(work):
    assert work.loop(kernels, "replay", 90) is kernels.replay
    assert work.loop(kernels, "sweep", 9) is kernels.sweep
    assert not work.pays
    assert work.loop(kernels, "replay", 1) is COMPILED.replay


def test_compiled_or_not_the_times_are_the_same(monkeypatch):
    graph = build_graph("depth-first", Layout(4, 8, 4))
    costs = AbstractCosts(transfer=0.1).costs(graph)
    results = []
    for compile_from in (10**9, 0):
        monkeypatch.setattr(compiling, "COMPILE_FROM", compile_from)
        timeline = compiled_engine.simulate(graph, costs)
        sums = [getattr(timeline, name) for name in compiled_engine.SUMMED]
        results.append([*timeline.start, *timeline.end, *sums])
    np.testing.assert_array_equal(*results)


def test_large_graphs_are_lowered_by_compiled_loops_if_their_sweep_will_load_them(monkeypatch):
    layout, by_columns = Layout(4, 8), []
    monkeypatch.setattr(compiled_lowering, "build_by_columns", partial(_spied, by_columns))
    for build in (
        partial(bfpp.build_graph, "1f1b", layout),
        Experiment("1f1b", pp=4, microbatches=8).graph,
    ):
        by_columns.clear()
        monkeypatch.setattr(compiling, "COMPILE_FROM", layout.tasks + 1)
        monkeypatch.setattr(compiling.WORK, "_asked", 0)
        graph = build()
        assert by_columns
        assert not compiling.WORK.pays_for(layout.tasks)
        monkeypatch.setattr(compiling, "COMPILE_FROM", layout.tasks)
        by_columns.clear()
        assert build().digest == graph.digest
        assert not by_columns
        assert compiling.WORK.pays


def test_a_schedule_that_there_is_not_is_no_work(monkeypatch):
    monkeypatch.setattr(compiling.WORK, "_asked", 0)
    with pytest.raises(bfpp.InvalidInput, match="is not a schedule"):
        bfpp.build_graph("1f2b", Layout(4, 10**6))
    assert not compiling.WORK.pays


def _spied(calls, *arguments, **further):
    calls.append(arguments)
    return build_graph(*arguments, **further)

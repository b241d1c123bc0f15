"""Large graphs are lowered by compiled loops."""

from __future__ import annotations

from functools import partial

import pytest

import bfpp
from bfpp.schedules import Layout, build_graph
from bfpp.sim.engines import compiled_lowering
from bfpp.sim.engines.loops import compiling
from bfpp.sim.experiment.experiment import Experiment


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

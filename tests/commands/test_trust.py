"""Simulated graphs have been checked, or are made by built-in schedules."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bfpp.api.predictions import predict
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Operation,
    TaskGraph,
    build_graph,
    lower,
    registered_schedules,
)
from bfpp.schedules.formats.graph_json import read_graph, write_graph
from bfpp.schedules.graph.templates import Piece
from bfpp.schedules.operations import operations
from bfpp.schedules.operations.operations import declare
from bfpp.schedules.operations.row import Row, Scope
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import ENGINES, NOT_CHECKED, simulate
from bfpp.sim.experiment.experiment import Experiment
from tests.helpers.mutations import waiting_less

LAYOUT = Layout(2, 4)


def without_a_wait(graph: TaskGraph) -> TaskGraph:
    """A backward pass does not wait for the gradient that it needs."""
    edges = [
        (task.number, other)
        for task in graph.tasks()
        for other in task.dependencies
        if task.operation is Operation.BACKWARD
        and graph.operation[other] == Operation.TRANSFER_GRADIENTS
    ]
    return waiting_less(graph, *edges[0])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "changed", [without_a_wait, lambda graph: read_graph(write_graph(without_a_wait(graph)))]
)
def test_a_wrong_graph_is_refused_wherever_it_comes_from(
    engine: str, changed: Callable[[TaskGraph], TaskGraph]
) -> None:
    graph = changed(build_graph("1f1b", LAYOUT))
    with pytest.raises(InvalidConfiguration, match="schedule: 1f1b: precedence: "):
        simulate(graph, AbstractCosts(), engine)
    with pytest.raises(InvalidConfiguration, match="precedence: "):
        predict(Experiment("1f1b", pp=2, microbatches=4), engine, graph=graph)


def test_what_is_built_in_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bfpp.schedules.validity._findings", None)
    for schedule in registered_schedules().values():
        layout = schedule.layout(2, 4)
        assert simulate(build_graph(schedule, layout), AbstractCosts()).step_time > 0


def test_a_graph_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = lower(registered_schedules()["gpipe"].orders(LAYOUT), LAYOUT, Communication())
    assert not graph.is_checked
    simulate(graph, AbstractCosts())
    monkeypatch.setattr("bfpp.schedules.validity._findings", None)
    simulate(graph, AbstractCosts())
    halves = (Piece(Operation.FORWARD, 0.5), Piece(Operation.FORWARD, 0.5))
    pieces = graph.with_templates({(Operation.FORWARD, 0): halves}).expanded()
    assert simulate(pieces, AbstractCosts()).about == {}
    assert simulate(replace(pieces), AbstractCosts()).about == NOT_CHECKED
    with pytest.raises(TypeError):
        simulate(replace(graph), AbstractCosts())


OWN = """
from bfpp.schedules.families.one_forward_one_backward import OneForwardOneBackward

class Mine(OneForwardOneBackward):
    name = "mine"
"""


def test_graphs_of_a_users_schedule_or_operation_are_checked(
    bfpp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN)
    lowering = sys.modules["bfpp.schedules.lowering"]
    posted = lowering.posted

    def wrong(graph: TaskGraph, *posts: object) -> TaskGraph:
        return without_a_wait(posted(graph, *posts))

    monkeypatch.setattr(lowering, "posted", wrong)
    line = "--pp 2 --microbatches 4"
    code, out, err = bfpp(f"simulate mine.py:Mine {line}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("bfpp simulate: SCHEDULE: mine: precedence: ")
    assert bfpp(f"simulate 1f1b {line}")[0] == 0
    monkeypatch.setattr(operations, "OPERATIONS", operations.OPERATIONS[:])
    monkeypatch.setattr("bfpp.schedules.families.registry.OPERATIONS", operations.OPERATIONS)
    declare("LOGGED", Row("logged", Scope.RANK))
    code, out, err = bfpp(f"simulate 1f1b {line}")
    assert (code, out) == (2, "")
    assert err.startswith("bfpp simulate: SCHEDULE: 1f1b: precedence: ")

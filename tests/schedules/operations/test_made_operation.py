"""A package adds operations that the lowering makes, in one file, and every layer knows them."""

from __future__ import annotations

import importlib
import sys
from re import DOTALL, findall, search
from types import ModuleType

import numpy as np
import pytest

from bfpp.core import lowering as core
from bfpp.core.sources import SOURCE
from bfpp.executor.dispatch.dispatch import KERNELS
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import DType
from bfpp.schedules import (
    Communication,
    Configuration,
    Degrees,
    Layout,
    Operation,
    Sharding,
    TaskGraph,
    build_graph,
    find_schedule,
)
from bfpp.schedules.columns import Groups
from bfpp.schedules.lowering.operation_tables import phases
from bfpp.schedules.operations.operations import OPERATIONS, declare
from bfpp.schedules.operations.row import Made, Row, Scope
from bfpp.schedules.operations.streams import STREAMS
from bfpp.schedules.validity import violations
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.prices import PRICES
from bfpp.sim.engines.engines import ENGINES, simulate
from bfpp.sim.models.model import load_model
from bfpp.sim.search.evaluation import Evaluation
from bfpp.sim.search.problem import Problem
from bfpp.traces.explain.causes import Causes
from bfpp.traces.explain.looks import LOOKS, Cause
from bfpp.traces.figures.terminal import text
from tests.helpers.small_models import chain
from tests.helpers.training_runs import errors_of

LAYOUT = Layout(2, 4)
COSTS = AbstractCosts(further={"metrics_all_reduce": 0.5, "compress": 0.25, "check": 0.125})


@pytest.fixture(scope="module")
def added():
    """The package, for as long as its tests take."""
    streams, operations = len(STREAMS), len(OPERATIONS)
    package = importlib.import_module("tests.helpers.metrics_package")
    yield package
    for table in (LOOKS, PRICES, KERNELS):
        for operation in package.ADDED:
            del table[operation]
    del STREAMS[streams:], OPERATIONS[operations:]
    del sys.modules[package.__name__]


def of(graph: TaskGraph, operation: Operation) -> list[int]:
    found: list[int] = np.flatnonzero(graph.operation == operation).tolist()
    return found


@pytest.mark.parametrize("sharding", Sharding)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "chimera"])
def test_graphs_have_them_and_are_valid(
    added: ModuleType, schedule: str, sharding: Sharding
) -> None:
    layout = LAYOUT if schedule != "chimera" else Layout(2, 4, copies=[(1, 0)])
    graph = build_graph(schedule, layout, Communication(sharding))
    assert violations(graph) == []
    checks = of(graph, added.CHECK)
    assert len(checks) == 2 * 4
    for task in checks:
        forward, *_ = graph.dependencies.of(task).tolist()
        assert graph.operation[forward] == Operation.FORWARD
        users = graph.dependents.of(task)
        assert {OPERATIONS[code].name for code in graph.operation[users]} <= {
            "BACKWARD", "BACKWARD_INPUT",
        }  # fmt: skip
        assert (graph.microbatch[users] == graph.microbatch[task]).all()
        assert len(users) == 1
    metrics = of(graph, added.METRICS_ALL_REDUCE)
    assert sorted(graph.rank[metrics]) == [0, 1]
    for task in metrics:
        (last,) = graph.dependencies.of(task).tolist()
        own = graph.compute_tasks.of(int(graph.rank[task]))
        assert last == own[graph.operation[own] == Operation.FORWARD][-1]
    compressed = of(graph, added.COMPRESS)
    assert graph.unit[compressed].tolist().count(0) == 1
    for task in of(graph, Operation.OPTIMIZER):
        assert {*compressed} & {*graph.dependencies.of(task).tolist()}


def test_a_graph_without_what_the_optimizer_awaits_is_wrong(added: ModuleType) -> None:
    graph = build_graph("1f1b", LAYOUT)
    start, member = graph.dependencies
    kept = ~np.isin(member, of(graph, added.COMPRESS))
    count = np.add.reduceat(np.append(kept, False), start[:-1]) * (np.diff(start) > 0)
    vars(graph)["dependencies"] = Groups(np.cumsum([0, *count]), member[kept])
    assert {each.rule for each in violations(graph)}


def test_an_evaluation_has_what_is_made_after_passes(added: ModuleType) -> None:
    graph = build_graph("1f1b", LAYOUT, evaluates=True)
    assert violations(graph) == []
    assert len(of(graph, added.CHECK)) == 8
    for operation in (added.METRICS_ALL_REDUCE, added.COMPRESS, Operation.OPTIMIZER):
        assert not of(graph, operation)


@pytest.mark.parametrize("engine", ENGINES)
def test_they_are_simulated(added: ModuleType, engine: str) -> None:
    graph = build_graph("1f1b", LAYOUT)
    timeline = simulate(graph, COSTS, engine)
    assert timeline.duration[of(graph, added.COMPRESS)].tolist() == [0.25] * 2
    without = simulate(graph, AbstractCosts(), engine)
    # The last rank waits for each check; the first one's last reduction is compressed.
    assert timeline.step_time == pytest.approx(without.step_time + 4 * 0.125 + 0.25)
    assert Causes(timeline).idle[0][Cause.REDUCTION] > 0
    assert "metrics" in text(timeline, width=120)


def test_they_are_searched_with(added: ModuleType) -> None:
    problem = Problem(load_model("bert-6.6b"), load_cluster("dgx1-v100"), (8,), (16,), ("1f1b",))
    configuration = Configuration(find_schedule("1f1b"), Degrees(pp=4, dp=2), 8)
    evaluation = Evaluation(problem)
    assert of(evaluation.graph_of(configuration), added.CHECK)
    assert evaluation.outcome(configuration).step_time > 0


def test_they_are_dispatched(added: ModuleType) -> None:
    """In order, and the training is as exact as ever."""
    added.RAN.clear()
    plan = Plan(graph=build_graph("1f1b", LAYOUT), model=chain(4), precision=DType.FLOAT64)
    assert errors_of(plan).worst < 1e-10
    steps = 3
    ran = [operation.name for operation, *_ in added.RAN]
    assert ran.count("CHECK") == 8 * steps
    assert ran.count("METRICS_ALL_REDUCE") == ran.count("COMPRESS") == 2 * steps


@pytest.mark.usefixtures("added")
def test_phases_follow_what_is_read() -> None:
    names = [each[0].name for each in phases(Communication(clipping=True))]
    assert names.index("REDUCE") < names.index("COMPRESS") < names.index("OPTIMIZER")
    assert names.index("CHECK") > names.index("TRANSFER_ACTIVATIONS")
    assert names.index("REDUCE") < names.index("NORM") < names.index("OPTIMIZER")


WRONG = {
    "only a built-in operation is made in_order": Row("x", Scope.CELL, made=Made.IN_ORDER),
    "only a built-in operation is made after_runs": Row("x", Scope.UNIT, made=Made.AFTER_RUNS),
    "`after` names passes": Row("x", Scope.CELL, made=Made.AFTER_PASSES, after=("REDUCE",)),
    "is of a cell, and nothing else": Row(
        "x", Scope.RANK, made=Made.AFTER_PASSES, after=("FORWARD",)
    ),
    "needs a datum that it writes": Row(
        "x", Scope.RANK, made=Made.AFTER_DATA, awaited_by=("OPTIMIZER",)
    ),
}


@pytest.mark.parametrize("reason", WRONG)
def test_rows_that_cannot_be_are_refused(reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        declare("WRONG", WRONG[reason])
    assert OPERATIONS[-1].name != "WRONG"


def test_what_comes_too_late_cannot_await(added: ModuleType) -> None:
    row = Row(
        "x", Scope.CELL, writes=(added.CHECKED,), made=Made.AFTER_PASSES,
        after=("BACKWARD",), awaited_by=("FORWARD",),
    )  # fmt: skip
    with pytest.raises(ValueError, match="cannot be awaited by FORWARD"):
        declare("WRONG", row)


def test_the_core_names_kinds_and_scopes_alike() -> None:
    header = (SOURCE / "lowering" / "lowering.h").read_text()
    made = findall(r"MADE_(\w+)", search(r"enum \{\s*MADE_.*?\}", header, DOTALL)[0])
    assert made == [each.name for each in Made]
    scopes = findall(r"SCOPE_(\w+)", search(r"enum \{\s*SCOPE_.*?\}", header, DOTALL)[0])
    assert scopes == [each.name for each in Scope]
    assert len(findall(r"\w+_COLUMN\b", header)) == core.COLUMNS

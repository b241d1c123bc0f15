"""A package adds an operation in one file, and every layer knows it."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.executor.dispatch.dispatch import KERNELS
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import DType
from bfpp.schedules import (
    Degrees,
    InvalidConfiguration,
    Layout,
    Operation,
    TaskGraph,
    build_graph,
)
from bfpp.schedules.formats.graph_json import read_graph, write_graph
from bfpp.schedules.graph.templates import Piece
from bfpp.schedules.operations.operations import (
    OPERATIONS,
)
from bfpp.schedules.operations.streams import STREAMS
from bfpp.schedules.validity import violations
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import PAPER
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.parameters import tasks_of_kind
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.prices import PRICES
from bfpp.sim.engines.engines import ENGINES, simulate
from bfpp.sim.experiment.sensitivity import sensitivities
from bfpp.sim.models.model import load_model
from bfpp.traces.explain.causes import Causes
from bfpp.traces.explain.looks import LOOKS, Cause
from bfpp.traces.figures.panel import Panel
from bfpp.traces.figures.svg.schedule import svg
from bfpp.traces.figures.terminal import text
from bfpp.traces.formats.perfetto_writing import events
from bfpp.traces.page.html import write_html
from bfpp.traces.timeline.metrics import rank_metrics
from tests.helpers.small_models import chain
from tests.helpers.strategies import graphs
from tests.helpers.training_runs import errors_of

TABLES = (LOOKS, PRICES, KERNELS)
COSTS = AbstractCosts(transfer=0.25, further={"all_to_all": 0.5})


@pytest.fixture(scope="module")
def experts():
    """The package, for as long as its tests take."""
    streams, operations = len(STREAMS), len(OPERATIONS)
    package = importlib.import_module("tests.helpers.expert_package")
    yield package
    for table in TABLES:
        del table[package.ALL_TO_ALL]
    del STREAMS[streams:], OPERATIONS[operations:]
    del sys.modules[package.__name__]


def example(experts: ModuleType) -> TaskGraph:
    return experts.with_experts(build_graph("breadth-first", Layout(2, 4, 2)))


def test_what_orders_and_checks_sees_whole_passes(experts: ModuleType) -> None:
    graph = example(experts)
    plain = build_graph("breadth-first", Layout(2, 4, 2))
    assert len(graph) == len(plain)
    assert violations(graph) == []
    assert graph.digest != plain.digest
    assert experts.ALL_TO_ALL not in graph.operation


def test_what_draws_and_runs_sees_the_pieces(experts: ModuleType) -> None:
    pieces = example(experts).expanded()
    # 4 stages, 2 of them with experts; 4 micro-batches, forward and backward.
    assert (pieces.operation == experts.ALL_TO_ALL).sum() == 2 * 4 * 2 * 2
    assert pieces.is_compute.sum() == 2 * 4 * 2 * 1 + 2 * 4 * 2 * 3
    assert [lane.title for lane in pieces.lanes if lane.stream is experts.EXPERT] == [
        "expert-parallel"
    ]
    assert pieces.is_whole[pieces.is_compute].sum() == 4 * 4 * 2


@pytest.mark.parametrize("engine", ENGINES)
def test_it_is_simulated_and_priced(experts: ModuleType, engine: str) -> None:
    graph = example(experts)
    free = simulate(graph, AbstractCosts(transfer=0.25), engine)
    composite, expanded = (simulate(each, COSTS, engine) for each in (graph, graph.expanded()))
    assert composite.step_time == pytest.approx(expanded.step_time, rel=1e-12)
    assert composite.step_time > free.step_time
    exchanges = expanded.graph.operation == experts.ALL_TO_ALL
    assert expanded.duration[exchanges].tolist() == pytest.approx([0.5] * 32)


@settings(deadline=None, max_examples=60)
@given(graphs(), st.data())
def test_pieces_and_passes_take_equally_long(experts: ModuleType, graph, data) -> None:
    """Without contention, whatever is in pieces and however long it takes, in blocks too."""
    chosen = {
        (operation, stage): data.draw(templates(experts, operation))
        for operation in (Operation.FORWARD, Operation.BACKWARD)
        for stage in range(graph.layout.units)
        if data.draw(st.booleans())
    }
    seconds = st.floats(0, 3)
    costs = AbstractCosts(
        *(data.draw(seconds) for _ in range(2)),
        transfer=data.draw(seconds),
        gather=data.draw(seconds),
        reduce=data.draw(seconds),
        further={"all_to_all": data.draw(seconds)},
    )
    composite = graph.with_templates(chosen)
    whole, pieces = simulate(composite, costs), simulate(composite.expanded(), costs)
    assert whole.step_time == pytest.approx(pieces.step_time, rel=1e-9)
    assert whole.graph.is_compute.sum() == pieces.graph.is_whole[pieces.graph.is_compute].sum()
    # Every pass ends when its last piece does, and a block when both of its passes have.
    for mine, theirs in ((whole.start, pieces.start), (whole.end, pieces.end)):
        mine, theirs = mine[~whole.graph.is_pass], theirs[~pieces.graph.is_pass]
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9)
    ranks = ((each.graph.rank[each.graph.is_pass], each) for each in (whole, pieces))
    busy = [
        [each.end[each.graph.is_pass & (each.graph.rank == rank)].max() for rank in {*of.tolist()}]
        for of, each in ranks
    ]
    assert busy[0] == pytest.approx(busy[1])


@st.composite
def templates(draw: st.DrawFn, experts: ModuleType, operation: Operation):
    """Any chain of compute and exchanges, either of which may come first or last."""
    kinds = draw(st.lists(st.booleans(), min_size=1, max_size=5).filter(any))
    return tuple(
        Piece(operation, 1 / sum(kinds)) if is_compute else Piece(experts.ALL_TO_ALL)
        for is_compute in kinds
    )


def test_it_is_priced_on_a_cluster(experts: ModuleType) -> None:
    costs = PhysicalCosts(load_model("bert-6.6b"), load_cluster("dgx1-v100"), Degrees(dp=4))
    graph = example(experts)
    times = [simulate(each, costs).step_time for each in (graph, graph.expanded())]
    assert times[0] == pytest.approx(times[1], rel=1e-9)
    assert times[0] > simulate(build_graph("breadth-first", Layout(2, 4, 2)), costs).step_time


def test_it_is_priced_after_graphs_without_it(experts: ModuleType) -> None:
    """Caches of the time when there was one operation less are not taken for all."""
    unused = replace(PAPER)
    costs = PhysicalCosts(
        load_model("bert-6.6b"), load_cluster("dgx1-v100"), Degrees(dp=4), implementation=unused
    )
    declared = OPERATIONS.pop()
    try:
        plain = costs.step_time(build_graph("breadth-first", Layout(2, 4, 2)))
    finally:
        OPERATIONS.append(declared)
    assert costs.step_time(example(experts).expanded()) > plain


def test_it_is_explained(experts: ModuleType) -> None:
    pieces = example(experts).expanded()
    timeline = simulate(pieces, COSTS)
    idle = Causes(timeline).idle
    assert idle[1][Cause.EXPERT] == pytest.approx(4 * 2 * 2 * 2 * 0.5)
    assert rank_metrics(timeline)[1].exposed_model == pytest.approx(4 * 2 * 2 * 2 * 0.5)
    assert rank_metrics(timeline)[0].exposed_model == 0
    assert tasks_of_kind(pieces, "all_to_all").sum() == 32
    gains = {each.parameter: each.seconds_per_percent for each in sensitivities(pieces, COSTS)}
    assert gains["all_to_all"] > 0


def test_it_is_drawn(experts: ModuleType, tmp_path: Path) -> None:
    timeline = simulate(example(experts).expanded(), COSTS)
    drawn = text(timeline, width=200)
    assert re.search(r"rank 1  expert-parallel +\| +\S", drawn), drawn
    assert "x0x expert all-to-all" in drawn
    streams = (*STREAMS,)
    assert "expert all-to-all" in svg([Panel("experts", timeline, streams=streams)])
    write_html([Panel("experts", timeline)], tmp_path / "experts.html", "experts")
    assert "expert all-to-all" in (tmp_path / "experts.html").read_text()
    assert any(event.get("name", "").startswith("expert all-to-all") for event in events(timeline))


def test_it_is_written_and_read(experts: ModuleType) -> None:
    for graph in (example(experts), example(experts).expanded()):
        again = read_graph(write_graph(graph))
        assert again.digest == graph.digest
        assert again.templates == graph.templates


def test_it_is_dispatched(experts: ModuleType) -> None:
    """The pieces of each pass run in order, and the training is as exact as ever."""
    experts.EXCHANGED.clear()
    graph = example(experts).expanded()
    plan = Plan(graph=graph, model=chain(8), precision=DType.FLOAT64)
    assert errors_of(plan).worst < 1e-10
    steps = 3
    assert len(experts.EXCHANGED) == 32 * steps
    assert {stage for _, stage, _ in experts.EXCHANGED} == {1, 3}


@pytest.mark.usefixtures("experts")
def test_templates_that_cannot_be_are_refused() -> None:
    graph = build_graph("breadth-first", Layout(2, 2, 2))
    refused = {
        "there is no such unit": {(Operation.FORWARD, 4): (Piece(Operation.FORWARD, 1.0),)},
        "must add up to 1, not 0.5": {(Operation.FORWARD, 0): (Piece(Operation.FORWARD, 0.5),)},
        "not for pieces alone": {
            (Operation.FORWARD, 0): (Piece(Operation.FORWARD, 1.0), Piece(Operation.REDUCE))
        },
    }
    for reason, templates in refused.items():
        with pytest.raises(InvalidConfiguration, match=reason):
            graph.with_templates(templates)


def test_pieces_are_not_what_is_checked(experts: ModuleType) -> None:
    (found,) = violations(example(experts).expanded())
    assert "before it is expanded" in found.message

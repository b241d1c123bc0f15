"""Operations declared once: a package adds one in one file, and every layer knows it."""

from __future__ import annotations

import importlib
import pickle
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from operator import ne
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
    Communication,
    Degrees,
    InvalidConfiguration,
    Layout,
    Operation,
    Order,
    Sharding,
    TaskGraph,
    build_graph,
    lower,
)
from bfpp.schedules.formats.graph_json import read_graph, write_graph
from bfpp.schedules.graph.counts import peak_activations
from bfpp.schedules.graph.templates import Piece
from bfpp.schedules.operations.operations import (
    BUILT_IN,
    OPERATIONS,
    Table,
    collectives,
    declare,
    operation_named,
)
from bfpp.schedules.operations.row import Group, Row, Scope
from bfpp.schedules.operations.streams import COMPUTE, DATA, STREAMS
from bfpp.schedules.orders import validity
from bfpp.schedules.orders.steps import STEP, backward_input, backward_weight, forward
from bfpp.schedules.orders.validity import order_violations
from bfpp.schedules.validity import violations
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import PAPER
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.parameters import tasks_of_kind
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.prices import PRICES
from bfpp.sim.engines.engines import ENGINES, simulate
from bfpp.sim.experiment.sensitivity import sensitivities
from bfpp.sim.memory.activations_alive import passes_alive
from bfpp.sim.models.model import load_model
from bfpp.traces.explain.causes import Causes
from bfpp.traces.explain.looks import LOOKS, Cause
from bfpp.traces.figures.panel import Panel
from bfpp.traces.figures.svg.schedule import svg
from bfpp.traces.figures.terminal import text
from bfpp.traces.formats.perfetto import events
from bfpp.traces.page.html import write_html
from bfpp.traces.timeline.metrics import rank_metrics
from bfpp.traces.timeline.rank_times import COMMUNICATING, communicating
from tests.helpers.live_counts import gradient_buffers_over_time, weight_buffers_over_time
from tests.helpers.mutations import (
    MUTATIONS,
    changed,
    exchanged,
    find,
    rebuilt,
    waiting_less,
    without,
)
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
    """What was remembered of operations when there was one less is not taken for all."""
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


# Tables


def test_operations_are_found_by_name_and_by_code() -> None:
    for code, operation in enumerate(OPERATIONS):
        assert operation == code
        assert operation_named(operation.name) is operation
        assert pickle.loads(pickle.dumps(operation)) is operation
    with pytest.raises(ValueError, match="there is an operation FORWARD already"):
        declare("FORWARD", Row("forward", Scope.CELL))


@pytest.mark.parametrize("table", TABLES, ids=["traced", "prices", "kernels"])
def test_a_table_without_an_operation_fails_at_once(table) -> None:
    for operation in BUILT_IN:
        rows = {each: row for each, row in table.items() if each is not operation}
        with pytest.raises(LookupError, match=f"{operation.name} has no {table.knows}"):
            Table(table.knows, rows)


def test_an_operation_without_a_row_is_named_where_it_is_looked_up() -> None:
    lonely = declare("LONELY", Row("lonely", Scope.CELL))
    try:
        for table in TABLES:
            with pytest.raises(LookupError, match="LONELY has no"):
                table[lonely]
    finally:
        OPERATIONS.pop()


# What follows from reading and writing


def drawn_graphs() -> list[TaskGraph]:
    """Right graphs and, by one mutation each, wrong ones; halves of backward passes among them."""
    chance, found = random.Random("rows"), []
    for sharding in Sharding:
        communication = Communication(sharding, clipping=True)
        found.append(lower(SPLIT, Layout(2, 2), communication, "split"))
        found.append(build_graph("breadth-first", Layout(2, 2), communication))
    hybrid = Communication(
        Sharding.FULL, clipping=True, run_length=1, hybrid=True, tied_embeddings=True
    )
    found.append(build_graph("breadth-first", Layout(2, 2), hybrid))
    found.append(build_graph("1f1b", Layout(2, 2), Communication(tied_embeddings=True)))
    offloading = Communication(offload=1)
    found.append(lower([HALVES], Layout(1, 3), offloading, "halves"))
    found.append(build_graph("gpipe", Layout(1, 3), offloading))
    for graph in tuple(found):
        tasks = [*graph.tasks()]
        lanes = [graph.lane_tasks.of(lane).tolist() for lane in range(len(graph.lanes))]
        found += [exchanged(graph, *pair) for lane in lanes for pair in pairwise(lane)]
        found += [
            waiting_less(graph, task.number, other) for task in tasks for other in task.dependencies
        ]
        found += [without(graph, task.number, bridged=True) for task in tasks]
        for task in find(graph, Operation.BACKWARD, Operation.BACKWARD_INPUT):
            free = changed(graph, task.number, dependencies=())
            (before,) = find(graph, Operation.FORWARD, unit=task.unit, microbatch=task.microbatch)
            found.append(exchanged(free, before.number, task.number))
        for task in tasks:
            if task.operation.row.scope is Scope.RANK:
                free = changed(graph, task.number, dependencies=())
                lane = graph.lane_tasks.of(task.lane).tolist()
                found += [exchanged(free, lane[lane.index(task.number) - 1], task.number)]
        for mutation in MUTATIONS.values():
            mutant = mutation(graph, lambda items: chance.choice(list(items)))
            found += [mutant] if mutant is not None else []
    return chance.sample(found, len(found))  # so that each kind comes soon


def split(stage: int) -> Order:
    steps = [step(stage, cell) for cell in (0, 1) for step in (forward, backward_input)]
    return np.array([*steps, backward_weight(stage, 0), backward_weight(stage, 1)], dtype=STEP)


SPLIT = [
    np.array([forward(0, 0), forward(0, 1), *split(0)[[1, 3, 4, 5]].tolist()], dtype=STEP),
    split(1),
]
HALVES = np.array(
    [step(0, cell) for step in (forward, backward_input, backward_weight) for cell in range(3)],
    dtype=STEP,
)
LATE = [np.array([backward_weight(0, 0), backward_input(0, 0), forward(0, 0)], dtype=STEP)]


SOMETIMES = (Operation.GATHER, Operation.NORM, Operation.ALL_REDUCE, Operation.TIED_ALL_REDUCE)

EXCHANGING = (
    Piece(Operation.FORWARD, 0.5),
    Piece(Operation.EXPERT_DISPATCH),
    Piece(Operation.EXPERT_COMBINE),
    Piece(Operation.FORWARD, 0.5),
)


def all_that_follows(graphs: Sequence[TaskGraph]) -> Iterator[object]:
    """What the checkers, the lowering and the metrics make of the rows."""
    validity._makers.cache_clear()
    yield [each.message for each in order_violations(LATE)]
    for sharding, overlap in ((Sharding.FULL, True), *product(Sharding, (False,))):
        hybrid = sharding is Sharding.FULL and overlap
        communication = Communication(
            sharding, overlap, overlap, clipping=True, hybrid=hybrid, tied_embeddings=overlap
        )
        for groups in COMMUNICATING:
            yield [each.name for each in communicating(groups, communication)]
        yield [each.name for each in collectives(communication)]
        yield [each.group(communication) for each in BUILT_IN]
        try:
            yield from what_is_lowered(communication)
        except Exception as error:
            yield repr(error)
    for graph in graphs:
        # Anew, as graphs keep what they have found out about their tasks.
        yield violations(rebuilt(graph, [*graph.tasks()]))


def what_is_lowered(communication: Communication) -> Iterator[object]:
    for graph in (
        lower(SPLIT, Layout(2, 2), communication, "split"),
        build_graph("breadth-first", Layout(2, 2), communication),
        build_graph("gpipe", Layout(1, 3), replace(communication, offload=1)),
    ):
        costs = AbstractCosts(1, 2, 1, 1, 1, 1, 1, 1, 1, all_reduce=1, host_copy=1)
        timeline = simulate(graph, costs)
        yield graph.digest
        yield peak_activations(graph).tolist()
        yield text(timeline)
        exchanging = {"expert_dispatch": 1, "expert_combine": 1}
        pieces = graph.with_templates({(Operation.FORWARD, 0): EXCHANGING}).expanded()
        yield pieces.digest
        yield text(simulate(pieces, AbstractCosts(further=exchanging)), 150)
        for rank in range(graph.layout.pp):
            yield str(passes_alive(timeline, rank))
            yield str(gradient_buffers_over_time(timeline, rank))
            yield str(weight_buffers_over_time(timeline, rank))


def wrong_rows() -> list[object]:
    """Each row of the table with one entry dropped or changed."""
    cases = []
    for operation in BUILT_IN:
        row = operation.row
        for field in ("reads", "writes", "ends"):
            entries = getattr(row, field)
            for entry in entries:
                left = tuple(each for each in entries if each is not entry)
                cases.append((operation, f"without {field} {entry}", {field: left}))
        moved = [each for each in operation.reads if each.units_on]
        if moved:
            reads = tuple(it._replace(units_on=-it.units_on) for it in operation.reads)
            cases.append((operation, "the other way", {"reads": reads}))
        if row.carries:
            back = row.carries._replace(units_on=-row.carries.units_on)
            cases.append((operation, "carried back", {"carries": back}))
            cases.append((operation, "carries nothing", {"carries": None}))
            cases.append((operation, "arrives elsewhere", {"arrives_on": COMPUTE}))
        stream = DATA if row.stream is COMPUTE else COMPUTE
        cases.append((operation, "another stream", {"stream": stream}))
        scopes = [scope for scope in Scope if scope is not row.scope]
        cases += [(operation, f"of a {scope}", {"scope": scope}) for scope in scopes]
        cases.append((operation, "another group", {"group": Group.TP}))
        if operation in SOMETIMES:
            cases.append((operation, "always", {"happens": lambda _: True}))
            cases.append((operation, "never", {"happens": lambda _: False}))
    return [pytest.param(*case, id=f"{case[0].name} {case[1]}") for case in cases]


@pytest.fixture(scope="module")
def drawn() -> tuple[list[TaskGraph], list[object]]:
    graphs = drawn_graphs()
    return graphs, [*all_that_follows(graphs)]


@pytest.mark.parametrize(("operation", "what", "entries"), wrong_rows())
def test_every_entry_of_a_row_counts(
    monkeypatch: pytest.MonkeyPatch, drawn, operation: Operation, what: str, entries
) -> None:
    graphs, right = drawn
    monkeypatch.setattr(operation, "row", replace(operation.row, **entries))
    try:
        assert any(map(ne, all_that_follows(graphs), right)), what
    finally:
        validity._makers.cache_clear()

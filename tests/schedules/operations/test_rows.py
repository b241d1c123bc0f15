"""Every entry of an operation's row counts: in the checkers, the lowering and the metrics."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, pairwise, product
from operator import ne

import numpy as np
import pytest

from bfpp.schedules import (
    Communication,
    Layout,
    Operation,
    Order,
    Sharding,
    TaskGraph,
    build_graph,
    lower,
)
from bfpp.schedules.graph import lanes
from bfpp.schedules.graph.counts import peak_activations
from bfpp.schedules.graph.templates import Piece
from bfpp.schedules.lowering import operation_tables
from bfpp.schedules.operations.operations import (
    BUILT_IN,
    collectives,
)
from bfpp.schedules.operations.row import Group, Scope
from bfpp.schedules.operations.streams import COMPUTE, DATA
from bfpp.schedules.orders import validity
from bfpp.schedules.orders.steps import STEP, backward_input, backward_weight, forward
from bfpp.schedules.orders.validity import order_violations
from bfpp.schedules.validity import violations
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import simulate
from bfpp.sim.memory.activations_alive import passes_alive
from bfpp.traces.figures.terminal import text
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
    found.append(build_graph("1f1b", Layout(2, 1), replace(hybrid, muon=True)))
    found.append(build_graph("1f1b", Layout(2, 2), Communication(muon=True)))
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


def all_that_follows() -> Iterator[object]:
    """The rows as the checker of orders, the lowering and the metrics see them."""
    forget_rows()
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


def judged(graph: TaskGraph) -> object:
    """The graph as the checker sees it; anew, as it keeps what it has found out about its tasks."""
    return violations(rebuilt(graph, [*graph.tasks()]))


def forget_rows() -> None:
    """Caches of rows, by name or by code."""
    for remembered in (
        validity._makers,
        operation_tables._lowering_of,
        lanes.streams_of_operations,
    ):
        remembered.cache_clear()


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
def right() -> tuple[list[object], list[tuple[TaskGraph, object]]]:
    """What follows from the rows as they are."""
    return [*all_that_follows()], [(graph, judged(graph)) for graph in drawn_graphs()]


@pytest.mark.parametrize(("operation", "what", "entries"), wrong_rows())
def test_every_entry_of_a_row_counts(
    monkeypatch: pytest.MonkeyPatch, right, operation: Operation, what: str, entries
) -> None:
    follows, graphs = right
    likely_first = sorted(graphs, key=lambda each: not (each[0].operation == operation).any())
    monkeypatch.setattr(operation, "row", replace(operation.row, **entries))
    try:
        others = map(ne, all_that_follows(), follows)
        judgements = (judged(graph) != before for graph, before in likely_first)
        assert any(chain(others, judgements)), what
    finally:
        forget_rows()

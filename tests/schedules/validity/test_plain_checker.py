"""The checker finds what its rules find in their plainest form, whatever was done to a graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from benchmarks.schedules.plain_checker import RULES, plain_violations
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Operation,
    Sharding,
    TaskGraph,
    build_graph,
    find_schedule,
    registered_schedules,
)
from bfpp.schedules.columns import NONE
from bfpp.schedules.validity import BUFFERS, ORDER, Violation, structure, violations
from bfpp.schedules.validity.buffers import BufferUse
from bfpp.schedules.validity.happens_before import HappensBefore, replay
from tests.helpers.mutations import MUTATIONS
from tests.helpers.strategies import graphs, order_graphs, some_configuration


def in_order(found: list[Violation]) -> list[tuple[str, str, tuple[int, ...]]]:
    return sorted((each.rule, each.message, each.tasks) for each in found)


@settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    graphs(3, 2, cells=9) | order_graphs(3, 2),
    st.lists(st.sampled_from(list(MUTATIONS)), max_size=4),
    st.data(),
)
def test_both_checkers_find_the_same(
    graph: TaskGraph, names: list[str], data: st.DataObject
) -> None:
    for name in names:
        graph = MUTATIONS[name](graph, lambda items: data.draw(st.sampled_from(items))) or graph
    assume(not [*structure.columns(graph)] and (replay(graph) != NONE).all())
    found = [each for each in violations(graph) if each.rule in RULES]
    assert in_order(found) == in_order(plain_violations(graph))


@pytest.mark.parametrize("sharding", Sharding)
@pytest.mark.parametrize("name", registered_schedules())
def test_short_proofs_are_all_that_a_schedule_needs(name: str, sharding: Sharding) -> None:
    """A search would take a million tasks minutes."""
    try:
        graph = some_configuration(find_schedule(name), 4, Communication(sharding)).graph()
    except InvalidConfiguration:
        pytest.skip("cannot be sharded so")
    order = HappensBefore(graph, replay(graph))
    buffers = BufferUse(graph, order)
    for table, arguments in ((ORDER, (graph, order)), (BUFFERS, (buffers,))):
        for rule in table.values():
            assert [*rule(*arguments)] == []
    assert order.searched == 0


def test_a_search_finds_what_short_proofs_do_not() -> None:
    """A chain over many lanes, each of which adds one link."""
    graph = build_graph("gpipe", Layout(8, 1), Communication())
    first, last = (
        np.flatnonzero((graph.operation == Operation.FORWARD) & (graph.unit == unit))
        for unit in (0, 7)
    )
    order = HappensBefore(graph, replay(graph))
    assert order(first, last).all()
    assert not order(last, first).any()
    assert order.searched == 1

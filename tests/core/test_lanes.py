"""Lanes of tasks, against those that the lowering finds by kinds; and malformed columns."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bfpp.core.lanes import find_lanes
from bfpp.schedules.graph.lanes import lanes_of_tasks, streams_of_operations
from bfpp.schedules.operations.operations import OPERATIONS
from tests.helpers.spoilt_arrays import spoilt
from tests.helpers.strategies import compared, graphs, order_graphs


@compared(60)
@given(graphs() | order_graphs())
def test_tasks_are_on_the_lanes_of_their_kinds(graph):
    columns = graph.operation, graph.rank, graph.peer
    lanes, lane, peer_lane = lanes_of_tasks(*columns, graph.layout.pp, graph.communication)
    assert lanes == graph.lanes
    np.testing.assert_array_equal(lane, graph.lane)
    np.testing.assert_array_equal(peer_lane, graph.peer_lane)
    assert len({(each.rank, each.stream, each.peer) for each in lanes}) == len(lanes)
    for task in range(len(graph)):
        here, there = OPERATIONS[graph.operation[task]].streams(graph.communication)
        assert (lanes[lane[task]].rank, lanes[lane[task]].stream) == (graph.rank[task], here)
        if graph.peer[task] >= 0:
            assert lanes[peer_lane[task]][:2] == (graph.peer[task], there)


@compared(60)
@given(graphs(3, 2, cells=12), st.integers(0, 2**32 - 1))
def test_malformed_columns_are_refused_or_taken(graph, seed):
    streams = streams_of_operations(graph.communication, len(OPERATIONS))
    arrays = [graph.operation, graph.rank, graph.peer, *streams]
    with suppress(ValueError):
        operation, rank, peer, *streams = spoilt(np.random.default_rng(seed), arrays)
        find_lanes(operation, rank, peer, graph.layout.pp, tuple(streams))

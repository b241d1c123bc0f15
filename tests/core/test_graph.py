"""Followers, kinds and flags, against what they are by definition."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.core.graph import flags, followers, kinds
from bfpp.schedules.columns import NONE
from bfpp.schedules.graph.task_kinds import operation_flags
from bfpp.schedules.operations.operations import OPERATIONS, compute_steps, writers
from tests.helpers.spoilt_arrays import spoilt
from tests.helpers.strategies import compared, graphs, order_graphs

SOME = compared(40)
drawn_graphs = graphs() | order_graphs()


@SOME
@given(drawn_graphs)
def test_followers_are_dependents_and_the_next_on_each_lane(graph):
    expected = [graph.dependents.of(task).tolist() for task in range(len(graph))]
    for lane in range(len(graph.lanes)):
        tasks = graph.lane_tasks.of(lane).tolist()
        for task, after in pairwise(tasks):
            expected[task].append(after)
    assert graph.followers.start[0] == 0
    assert graph.followers.start[-1] == len(graph.followers.member)
    for task, after in enumerate(expected):
        assert sorted(graph.followers.of(task).tolist()) == sorted(after)


@SOME
@given(drawn_graphs)
def test_tasks_of_one_kind_differ_in_nothing_that_they_cost(graph):
    place = operation_flags().place[graph.operation]
    columns = np.stack([place, graph.unit, graph.rank, graph.peer])
    expected, first, of_task = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    np.testing.assert_array_equal(graph.kinds.first, first)
    np.testing.assert_array_equal(graph.kinds.of_task, of_task.ravel())
    units, ranks = graph.layout.units, graph.layout.pp
    sizes = len(OPERATIONS), units + 1, ranks, ranks + 1
    shifted = expected + np.array([[0], [1], [0], [1]])
    np.testing.assert_array_equal(graph.kinds.codes, np.ravel_multi_index(shifted, sizes))


@SOME
@given(drawn_graphs)
def test_flags_by_operations(graph):
    computes = {*map(int, compute_steps())}
    expected = [code in computes for code in graph.operation.tolist()]
    assert graph.is_compute.tolist() == expected
    np.testing.assert_array_equal(graph.is_pass, expected | (graph.piece != NONE))
    backward = computes - {*map(int, writers("output"))}
    assert graph.trains == bool(backward.intersection(graph.operation.tolist()))


def test_what_there_is_not():
    one, none = np.zeros(1, np.int32), np.full(1, NONE, np.int32)
    operation, place = np.zeros(1, np.int8), np.zeros(1, np.int32)
    assert kinds(operation, none, one, none, place, 1, 1).code.tolist() == [0]
    for unit, rank, peer in ((1, 0, -1), (-2, 0, -1), (0, 1, -1), (0, -1, -1), (0, 0, 1)):
        columns = (np.array([each], np.int32) for each in (unit, rank, peer))
        with pytest.raises(ValueError, match="malformed arrays for bfpp_kinds"):
            kinds(operation, *columns, place, 1, 1)
    with pytest.raises(ValueError, match="malformed"):
        kinds(operation + np.int8(1), none, one, none, place, 1, 1)
    with pytest.raises(ValueError, match="malformed"):
        kinds(operation, none, one, none, place, 2**31, 2**31)  # codes of more than 63 bits
    with pytest.raises(ValueError, match="malformed arrays for bfpp_flags"):
        flags(operation - np.int8(1), none, np.ones(1, bool), np.ones(1, bool))
    with pytest.raises(ValueError, match="malformed arrays for bfpp_followers"):
        followers(one, none, 1, np.array([0, 1]), np.array([1], np.int32))
    with pytest.raises(ValueError, match="malformed"):
        followers(one + np.int32(1), none, 1, np.array([0, 0]), one[:0])
    with pytest.raises(ValueError, match="dependency_start of followers has 1 elements, not 2"):
        followers(one, none, 1, np.zeros(1, np.int64), one[:0])


@compared(60)
@given(graphs(3, 2, cells=12), st.integers(0, 2**32 - 1))
def test_malformed_columns_are_refused_or_taken(graph, seed):
    random = np.random.default_rng(seed)
    known = operation_flags()
    with suppress(ValueError):
        lane, peer_lane, *waits = spoilt(random, [graph.lane, graph.peer_lane, *graph.dependencies])
        followers(lane, peer_lane, len(graph.lanes), *waits)
    with suppress(ValueError):
        columns = [graph.operation, graph.unit, graph.rank, graph.peer, known.place]
        kinds(*spoilt(random, columns), graph.layout.units, graph.layout.pp)
    with suppress(ValueError):
        columns = [graph.operation, graph.piece, known.is_compute, known.is_backward]
        flags(*spoilt(random, columns))

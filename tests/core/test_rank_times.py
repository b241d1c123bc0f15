"""Times of ranks for malformed arrays: `test_metrics` compares them with numpy's."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.core.rank_times import rank_times, step_sums
from bfpp.schedules.graph.task_kinds import operation_flags
from tests.helpers.measured import measured
from tests.helpers.spoilt_arrays import spoilt
from tests.helpers.strategies import compared, graphs

COMPUTE, P2P = 1, 0


def two_lanes(**others):
    """A rank that computes from 1 to 3, and communicates from 0 to 2 and from 5 to 6."""
    given = {
        "operation": np.array([1, 0, 0], np.int8),
        "lane": np.array([0, 1, 1], np.int32),
        "peer_lane": np.full(3, -1, np.int32),
        "kind": np.array([P2P, COMPUTE], np.int32),
        "kinds": 2,
        "rank_of_lane": np.zeros(2, np.int32),
        "ranks": 1,
        "start": np.array([1.0, 0.0, 5.0]),
        "end": np.array([3.0, 2.0, 6.0]),
    }
    return rank_times(**{**given, **others})


def test_one_rank_by_hand():
    found = two_lanes()
    assert (found.start, found.end, found.busy, found.exposed) == (1, 3, 2, 2)


def test_a_rank_that_computes_nothing_has_zeros():
    found = two_lanes(ranks=2)
    assert [column[..., 1].tolist() for column in found] == [0, 0, 0, [0]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"operation": np.array([2, 0, 0], np.int8)},
        {"operation": np.array([-1, 0, 0], np.int8)},
        {"lane": np.array([0, 2, 1], np.int32)},
        {"lane": np.array([0, -1, 1], np.int32)},
        {"peer_lane": np.array([0, 2, 1], np.int32)},
        {"kind": np.array([2, COMPUTE], np.int32)},
        {"rank_of_lane": np.array([1, 0], np.int32)},
        {"rank_of_lane": np.array([-1, 0], np.int32)},
        {"start": np.zeros(2)},
    ],
)
def test_what_there_is_not(wrong):
    with pytest.raises(ValueError, match="core"):
        two_lanes(**wrong)


@compared(40)
@given(measured())
def test_sums_of_a_step(drawn):
    sums = step_sums(drawn.start, drawn.end, drawn.graph.is_pass)
    assert sums.first_start == drawn.start.min()
    assert sums.step_time == drawn.end.max() - drawn.start.min()
    assert sums.pass_seconds == pytest.approx(drawn.duration[drawn.graph.is_pass].sum())


def test_a_step_has_tasks():
    nothing = np.empty(0)
    with pytest.raises(ValueError, match="malformed arrays for bfpp_step_sums"):
        step_sums(nothing, nothing, np.empty(0, bool))


@compared(60)
@given(graphs(3, 2, cells=12), st.integers(0, 2**32 - 1))
def test_malformed_arrays_are_refused_or_taken(graph, seed):
    random = np.random.default_rng(seed)
    kind = np.where(operation_flags().is_compute, 1, random.integers(-1, 1, 1)).astype(np.int32)
    rank_of_lane = np.array([lane.rank for lane in graph.lanes], dtype=np.int32)
    start = random.exponential(1, len(graph))
    columns = [graph.operation, graph.lane, graph.peer_lane, kind, rank_of_lane, start, start + 1]
    with suppress(ValueError):
        *tasks, kind, rank_of_lane, start, end = spoilt(random, columns)
        rank_times(*tasks, kind, 2, rank_of_lane, graph.layout.pp, start, end)

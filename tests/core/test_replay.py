"""The replay's loops, for what no graph of ours has: engines are compared in `test_engines`."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.core.replay import replay, sweep
from tests.helpers.spoilt_arrays import spoilt
from tests.helpers.strategies import compared, drawn_ports, graphs

NOTHING = np.empty(0, dtype=np.int32)


def in_a_row(seconds, size, ports, bandwidth):
    """Start and end of tasks without dependencies, each on a lane of its own."""
    tasks = len(seconds)
    start, end = np.full((2, tasks), np.nan)
    costs = (
        np.array(seconds, dtype=float),
        np.array(size, dtype=float),
        np.array(ports, dtype=np.int32).reshape(tasks, -1),
        np.array(bandwidth, dtype=float),
    )
    replay(np.zeros(tasks + 1, dtype=np.int64), NOTHING, costs, None, start, end)
    return start.tolist(), end.tolist()


def test_three_flows_of_which_two_share_a_port_at_a_time():
    """Through one port of 2 bytes/s: a second alone, then two at 1 byte/s until the first ends."""
    start, end = in_a_row([0, 1, 20], [4, 4, 2], [0, 0, 0], [2])
    assert start == [0, 0, 0]
    assert end == [3, 4, 21]


def test_bytes_without_a_port_take_no_time():
    assert in_a_row([1, 1, 1], [5, 5, 5], [-1, 0, 0], [10]) == ([0, 0, 0], [1, 2, 2])


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, np.nan])
def test_a_port_lets_something_pass(bandwidth):
    with pytest.raises(ValueError, match="malformed arrays for bfpp_replay"):
        in_a_row([0, 0], [1, 1], [0, 0], [bandwidth])


@pytest.mark.parametrize("port", [1, 2**31 - 1])
def test_a_port_that_there_is_not(port):
    with pytest.raises(ValueError, match="malformed"):
        in_a_row([0], [1], [port], [1])


@pytest.mark.parametrize("follower", [[-1], [2], [0]])
def test_followers_that_there_are_not_or_that_wait_for_themselves(follower):
    costs = np.ones(2), np.zeros(2), np.empty((2, 0), np.int32), np.empty(0)
    with pytest.raises(ValueError, match="malformed"):
        replay(
            np.array([0, 1, 1]), np.array(follower, np.int32), costs, None, np.empty(2), np.empty(2)
        )


@pytest.mark.parametrize("dependency", [-1, 0, 1])
def test_dependencies_come_before(dependency):
    costs = np.ones(1), np.zeros(1), np.empty((1, 0), np.int32), np.empty(0)
    lane = np.zeros(1, np.int32)
    waits = np.array([0, 1]), np.array([dependency], np.int32)
    with pytest.raises(ValueError, match="malformed arrays for bfpp_sweep"):
        sweep(lane, lane - 1, *waits, costs, 1, np.empty(1), np.empty(1))


def test_arrays_of_other_lengths_types_and_steps():
    lane = np.zeros(2, np.int32)
    waits = np.zeros(3, np.int64), NOTHING
    costs = [np.ones(2), np.zeros(2), np.empty((2, 0), np.int32), np.empty(0)]
    times = np.empty(2), np.empty(2)
    assert not sweep(lane, lane - 1, *waits, tuple(costs), 1, *times)
    with pytest.raises(ValueError, match="peer_lane of sweep has 1 elements, not 2"):
        sweep(lane, lane[:1], *waits, tuple(costs), 1, *times)
    with pytest.raises(TypeError, match="lane is of int64, not int32"):
        sweep(lane.astype(int), lane - 1, *waits, tuple(costs), 1, *times)
    with pytest.raises(TypeError, match="contiguous"):
        sweep(np.zeros(4, np.int32)[::2], lane - 1, *waits, tuple(costs), 1, *times)
    with pytest.raises(ValueError, match="end of sweep has 3 elements"):
        sweep(lane, lane - 1, *waits, tuple(costs), 1, times[0], np.empty(3))


@compared(60)
@given(graphs(3, 2, cells=12), st.integers(0, 2**32 - 1))
def test_malformed_arrays_are_refused_or_replayed(graph, seed):
    """Whatever the numbers are: nothing crashes, nothing hangs."""
    random = np.random.default_rng(seed)
    tasks, ports = len(graph), 3
    lanes = [graph.lane, graph.peer_lane, *graph.dependencies]
    costs = [
        random.exponential(1, tasks),
        random.integers(0, 3, tasks).astype(float),
        drawn_ports(random, tasks, ports, 2),
        random.integers(1, 9, ports).astype(float),
    ]
    times = np.empty(tasks), np.empty(tasks)
    slopes = [np.ones((tasks, 2)), np.ones((tasks, 2)), np.ones((ports, 2)), np.empty((tasks, 2))]
    with suppress(ValueError):
        given = spoilt(random, lanes + costs)
        sweep(*given[:4], tuple(given[4:]), len(graph.lanes), *times)
    followers = [*map(np.ascontiguousarray, graph.followers)]
    with suppress(ValueError):
        given = spoilt(random, followers + costs)
        replay(*given[:2], tuple(given[2:]), tuple(slopes) if seed % 2 else None, *times)

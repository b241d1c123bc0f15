"""Host time and device time of tasks, from when these were posted and when they started."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.executor.measure.passes.posting import device_seconds, host_seconds
from bfpp.executor.train.measured_timeline import END, POSTED, READY, START
from bfpp.schedules import Layout, TaskGraph, build_graph
from bfpp.schedules.columns import Seconds

GRAPH = build_graph("gpipe", Layout(1, 6, 1))


def step_of(graph: TaskGraph, host: Seconds, device: Seconds, idle: float = 0.0) -> Seconds:
    """A step whose host posts task after task, to a device that runs what was posted.

    The host launches kernels while it posts a task, which cannot end before the last launch.
    """
    columns = np.empty((1, 4, len(graph)))
    posted, free = 0.0, idle
    for task in range(len(graph)):
        start = max(posted, free)
        free = max(start + device[task], posted + host[task])
        columns[0, :, task] = (posted, start, start, free)
        posted += host[task]
    assert (POSTED, READY, START, END) == (0, 1, 2, 3)
    return columns


seconds = st.floats(0.01, 10.0)


@given(seconds, seconds, st.integers(0, 50))
def test_host_time_and_device_time_are_separated(host: float, device: float, idle: int) -> None:
    hosts, devices = (np.full(len(GRAPH), each) for each in (host, device))
    steps = [step_of(GRAPH, hosts, devices, idle=float(idle))] * 2
    passes = np.flatnonzero(GRAPH.is_compute)[1:].tolist()
    assert host_seconds(GRAPH, steps, passes, is_shared=True) == pytest.approx(host)
    found = device_seconds(GRAPH, steps, passes, is_shared=True)
    whole = steps[0][0, POSTED, passes] + host <= steps[0][0, START, passes]
    if whole.any() or device >= host:
        assert found == pytest.approx(device)
    else:
        assert device <= found <= host * (1 + 1e-9)


def test_what_the_host_holds_up_does_not_count_where_something_else_was_in_time() -> None:
    hosts, devices = np.ones(len(GRAPH)), np.full(len(GRAPH), 0.25)
    devices[0] = 3.5  # while it runs, the host gets ahead of some of what follows
    step = step_of(GRAPH, hosts, devices)
    durations = step[0, END] - step[0, START]
    assert durations[1:5].tolist() == [0.25, 0.25, 0.25, 0.75]
    assert device_seconds(GRAPH, [step], [1, 2, 3, 4], is_shared=True) == 0.25


def test_ranks_have_hosts_of_their_own_unless_they_share_one() -> None:
    graph = build_graph("gpipe", Layout(2, 2, 1))
    columns = np.zeros((2, 4, len(graph)))
    hosts = [(replica, rank) for replica in range(2) for rank in range(2)]
    for replica, rank in hosts:  # a rank's host takes 1, 2, 3 or 4 seconds a task
        own = np.flatnonzero(graph.rank == rank)
        number = hosts.index((replica, rank))
        columns[replica, POSTED, own] = 0.001 * number + (1 + number) * np.arange(len(own))
    for number in range(4):
        replica, rank = hosts[number]
        own = np.flatnonzero(graph.rank == rank)[:-1].tolist()
        alone = columns[[replica]]
        found = host_seconds(graph, [alone], own, is_shared=False)
        assert found == pytest.approx(1 + number)
    both = [*range(len(graph))]
    apart = host_seconds(graph, [columns], both, is_shared=False)
    together = host_seconds(graph, [columns], both, is_shared=True)
    assert together < apart  # one host of all posts the others' meanwhile

"""The SimPy engine: rendezvous, lanes, ports that are shared fairly."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import Communication, InvalidConfiguration, Layout, Operation, build_graph
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.cost_model import fixed_costs
from bfpp.sim.engines.engines import simulate
from bfpp.sim.engines.ports import Ports, max_min_rates
from bfpp.sim.engines.simpy_engine import simulate as replay
from tests.helpers.strategies import graphs


@settings(derandomize=True, deadline=None, max_examples=60)
@given(graphs(), st.integers(0, 2**32 - 1))
def test_tasks_keep_to_their_lanes_and_dependencies(graph, seed):
    """Whatever tasks cost: none starts before what it must wait for, none waits longer."""
    seconds = np.random.default_rng(seed).integers(0, 5, len(graph)).astype(float)
    costs = fixed_costs(seconds)
    timeline = replay(graph, costs)
    assert (timeline.duration == seconds).all()
    earliest = np.zeros(len(graph))
    for lane in range(len(graph.lanes)):
        tasks = graph.lane_tasks.of(lane)
        np.maximum.at(earliest, tasks[1:], timeline.end[tasks[:-1]])
    for task in range(len(graph)):
        for dependency in graph.dependencies.of(task):
            earliest[task] = max(earliest[task], timeline.end[dependency])
    assert (timeline.start == earliest).all()


def test_a_transfer_waits_for_both_its_ranks_when_it_blocks_them():
    """Two ranks, GPipe, blocking: by hand."""
    graph = build_graph("gpipe", Layout(2, 2), Communication(pp_overlap=False))
    timeline = simulate(graph, AbstractCosts(forward=2, backward=3, transfer=1))
    spans = [
        (str(graph.task(task)).partition(" ")[2], timeline.start[task], timeline.end[task])
        for task in np.flatnonzero(graph.is_compute | graph.is_transfer)
    ]
    assert spans == [
        ("forward of stage 0 micro-batch 0 on rank 0", 0, 2),
        ("transfer activations of stage 0 micro-batch 0 from rank 0 to 1", 2, 3),
        ("forward of stage 0 micro-batch 1 on rank 0", 3, 5),
        ("forward of stage 1 micro-batch 0 on rank 1", 3, 5),
        ("transfer activations of stage 0 micro-batch 1 from rank 0 to 1", 5, 6),
        ("forward of stage 1 micro-batch 1 on rank 1", 6, 8),
        ("backward of stage 1 micro-batch 0 on rank 1", 8, 11),
        ("transfer gradients of stage 1 micro-batch 0 from rank 1 to 0", 11, 12),
        ("backward of stage 0 micro-batch 0 on rank 0", 12, 15),
        ("backward of stage 1 micro-batch 1 on rank 1", 12, 15),
        ("transfer gradients of stage 1 micro-batch 1 from rank 1 to 0", 15, 16),
        ("backward of stage 0 micro-batch 1 on rank 0", 16, 19),
    ]


def arrivals(bandwidth, flows):
    """Arrival of each flow (start, bytes, ports)."""
    environment = simpy.Environment()
    ports = Ports(environment, np.array(bandwidth, dtype=float))
    arrived = [0.0] * len(flows)

    def send(number, start, size, *passed):
        yield environment.timeout(start)
        yield ports.send(size, np.array(passed))
        arrived[number] = environment.now

    for number, flow in enumerate(flows):
        environment.process(send(number, *flow))
    environment.run()
    return arrived


def test_flows_share_a_port_while_both_use_it():
    assert arrivals([10, 10], [(0, 100, 0, 1)]) == [10]
    assert arrivals([10, 10], [(0, 100, 0, 1), (0, 100, 0, 1)]) == [20, 20]
    assert arrivals([10, 10], [(0, 100, 0, 1), (5, 100, 0, 1)]) == [15, 20]
    assert arrivals([10, 10], [(0, 100, 0, 1), (10, 100, 0, 1)]) == [10, 20]


def test_what_a_flow_cannot_use_others_have():
    assert arrivals([10, 4], [(0, 100, 0, 1)]) == [25]
    both = [(0, 100, 0, 2), (0, 100, 1, 2)]
    assert arrivals([10, 10, 10], both) == [20, 20]
    assert arrivals([10, 2, 10], both) == [12.5, 50]


def filled_with_water(flows, bandwidth):
    """All rates rise together; a flow stops where one of its ports is full. In exact fractions."""
    rates = dict.fromkeys(range(len(flows)), Fraction(0))
    rising = set(rates)
    while rising:
        room = {
            port: bandwidth[port] - sum(rates[flow] for flow in rates if port in flows[flow])
            for port in range(len(bandwidth))
        }
        users = {port: sum(port in flows[flow] for flow in rising) for port in room}
        step = min(room[port] / count for port, count in users.items() if count)
        for flow in rising:
            rates[flow] += step
        full = {port for port, count in users.items() if room[port] == step * count}
        rising -= {flow for flow in rising if full.intersection(flows[flow])}
    return list(rates.values())


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.integers(1, 20), min_size=6, max_size=6),
    st.lists(st.sets(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=12),
)
def test_flows_share_ports_as_water_fills_them(bandwidth, flows):
    expected = filled_with_water(flows, [Fraction(each) for each in bandwidth])
    found = max_min_rates([sorted(flow) for flow in flows], np.array(bandwidth, dtype=float))
    assert found == pytest.approx([float(rate) for rate in expected], rel=1e-12)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 50)), min_size=1, max_size=8))
def test_a_shared_port_is_never_idle_while_bytes_wait(flows):
    """All through one pair of ports: the last arrival is that of one long queue."""
    arrived = arrivals([2, 2], [(start, size, 0, 1) for start, size in flows])
    busy_until = 0.0
    for start, size in sorted(flows):
        busy_until = max(busy_until, start) + size / 2
    assert max(arrived) == pytest.approx(busy_until)


def test_a_graph_that_deadlocks_is_named():
    graph = build_graph("gpipe", Layout(1, 1))
    first = int(np.flatnonzero(graph.operation == Operation.FORWARD)[0])
    last = len(graph) - 1
    start = np.repeat(np.arange(len(graph) + 1), 1)
    start = np.minimum(start, 0) + (np.arange(len(graph) + 1) > first)
    waits_for_ever = graph.dependencies._replace(
        start=start.astype(np.int64), member=np.array([last], dtype=np.int32)
    )
    broken = replace(graph, dependencies=waits_for_ever)
    with pytest.raises(RuntimeError, match="deadlocks: #0 forward of stage 0 micro-batch 0"):
        replay(broken, AbstractCosts().costs(broken))


def test_an_unknown_engine_is_refused():
    graph = build_graph("gpipe", Layout(1, 1))
    with pytest.raises(InvalidConfiguration, match="engine: 'fast' is not one of"):
        simulate(graph, AbstractCosts(), "fast")

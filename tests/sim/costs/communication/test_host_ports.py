"""Ports of hosts: what shares them takes longer, what does not goes on as if alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Operation,
    Sharding,
    build_graph,
)
from bfpp.sim.costs.communication.host_ports import HostPorts
from bfpp.sim.costs.measured.profile import DATA, PASSES, read_profile
from bfpp.sim.engines.engines import simulate

BYTES, RATE = 100.0, 50.0


def profile(ranks, replicas, hosts, **parts):
    """A profile of hosts with as many processes each; transfers take two seconds alone."""
    layer = {**dict.fromkeys(PASSES, 1.0), "parameters": 10, "bytes": BYTES}
    table = {
        "about": {},
        "run": {
            "ranks": ranks,
            "replicas": replicas,
            "microbatch_size": 1,
            "before": 0,
            "after": 0,
            "own_ends": 0,
        },
        "layers": [{"count": 2 * ranks, **layer}],
        "passes": dict.fromkeys(PASSES, 0.0),
        "channels": [
            {"sender": sender, "receiver": receiver, "latency": 0.25, "bandwidth": RATE}
            for sender in range(hosts)
            for receiver in range(hosts)
        ],
        "data": {way: {"fixed": 0.5, "per_parameter": 0.1} for way in DATA},
        "dispatch": {"next": 0.0, "wake": 0.0, "post": 0.0},
        "hosts": [{"processes": ranks * replicas // hosts, "out": RATE, "into": RATE}] * hosts,
    }
    return read_profile("bench", table | parts)


def transfers(graph, sender, receiver):
    return np.flatnonzero(graph.is_transfer & (graph.rank == sender) & (graph.peer == receiver))


def test_a_transfer_between_hosts_takes_latency_and_its_bytes():
    graph = build_graph("gpipe", Layout(2, 1))
    costs = profile(2, 1, 2).costs(graph)
    (task,) = transfers(graph, 0, 1)
    assert costs.seconds_alone()[task] == 0.25 + BYTES / RATE


@pytest.mark.parametrize(("ranks", "shares"), [(2, False), (3, True)])
def test_what_leaves_a_host_shares_its_port_and_what_enters_it_does_not(ranks, shares):
    # Activations go on and gradients go back at the same time: of three ranks, both leave the one
    # in the middle; of two, one leaves and the other enters.
    quick = {**dict.fromkeys(PASSES, 0.1), "parameters": 10, "bytes": BYTES}
    graph = build_graph("1f1b", Layout(ranks, 8))
    costs = profile(ranks, 1, ranks, layers=[{"count": 2 * ranks, **quick}])
    longest = simulate(graph, costs).duration[graph.is_transfer].max()
    alone = 0.25 + BYTES / RATE
    assert longest > 1.5 * alone if shares else longest == pytest.approx(alone)


def test_within_a_host_nothing_is_shared():
    graph = build_graph("1f1b", Layout(4, 4))
    costs = profile(4, 1, 2).costs(graph)
    within, between = transfers(graph, 0, 1), transfers(graph, 1, 2)
    assert (costs.bytes[within] == 0).all()
    assert (costs.seconds[within] == 0.25 + BYTES / RATE).all()
    assert (costs.bytes[between] == BYTES).all()
    assert (costs.ports[within] == -1).all()


def test_replicas_on_a_host_send_at_the_same_time():
    graph = build_graph("gpipe", Layout(2, 2))
    costs = profile(2, 2, 2).costs(graph)
    assert (costs.bytes[transfers(graph, 0, 1)] == 2 * BYTES).all()


@pytest.mark.parametrize(("hosts", "is_spread"), [(2, False), (4, True)])
def test_collectives_pass_ports_where_their_group_is_on_several_hosts(hosts, is_spread):
    graph = build_graph("breadth-first", Layout(2, 2, 2), Communication(Sharding.FULL))
    costs = profile(2, 2, hosts).costs(graph)
    gathers = graph.operation == Operation.GATHER
    assert costs.seconds_alone()[gathers] == pytest.approx(0.5 + 0.1 * 10)
    assert (costs.bytes[gathers] > 0).all() == is_spread


@pytest.mark.parametrize(("hosts", "alone"), [(4, 1.0), (2, 0.5)])
def test_copies_of_stages_reduce_over_ports_in_the_time_that_all_took_together(hosts, alone):
    """Two pairs of ranks were measured at once: where both pass a port, each had half of it."""
    graph = build_graph("chimera", Layout(4, 4, copies=[(3, 2, 1, 0)]))
    lines = {way: {"fixed": 0.5, "per_parameter": 0.2} for way in DATA}
    costs = profile(4, 1, hosts, copies=lines).costs(graph)
    reductions = graph.operation == Operation.REDUCE
    moving = 0.2 * 10 * 2  # parameters of a stage: two layers
    assert costs.seconds_alone()[reductions] == pytest.approx(0.5 + alone * moving)


def test_more_ranks_than_processes_of_hosts_are_refused():
    graph = build_graph("gpipe", Layout(4, 2))
    with pytest.raises(InvalidConfiguration, match="its hosts hold 2 processes, not 4 ranks x 1"):
        profile(2, 1, 2).costs(graph)


@given(
    st.sampled_from(["gpipe", "1f1b", "breadth-first", "depth-first"]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 2),
    st.floats(1, 1000),
)
def test_both_engines_agree_and_ports_that_are_shared_never_help(schedule, count, replicas, rate):
    loops = 2 if schedule.endswith("first") else 1
    graph = build_graph(schedule, Layout(4, 4, loops), Communication(Sharding.NONE))
    costs = profile(4, replicas, count)
    ports = ({"processes": 4 * replicas / count, "out": rate, "into": rate},) * count
    narrow, wide = (replace(costs, hosts=each) for each in (ports, wider(ports)))
    times = [simulate(graph, each).step_time for each in (narrow, wide)]
    assert times[1] <= times[0] * (1 + 1e-9)
    assert simulate(graph, narrow, "simpy").step_time == pytest.approx(times[0])


def wider(ports):
    """Ports that no transfer fills."""
    return tuple(port | {"out": 1e9, "into": 1e9} for port in ports)


def test_ports_are_those_of_hosts_and_of_ways_between_them():
    one = np.array([1, 1])
    way = np.array([[9.0, 5.0], [6.0, 9.0]])
    ports = HostPorts(one, np.array([1.0, 2.0]), np.array([3.0, 4.0]), way, one.cumsum(), 1)
    load = ports.transfer(np.array([0, 1]), np.array([1, 0]), np.zeros(2), np.ones(2))
    assert ports.bandwidth[load.ports].tolist() == [[1.0, 4.0, 5.0], [2.0, 3.0, 6.0]]

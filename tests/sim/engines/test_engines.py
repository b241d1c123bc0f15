"""The flagship: two engines, written apart, agree on every task of every graph, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.core import replay as core
from bfpp.schedules import (
    Communication,
    Degrees,
    Layout,
    Operation,
    Sharding,
    build_graph,
    find_schedule,
)
from bfpp.schedules.columns import NONE
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines import compiled_engine, simpy_engine
from bfpp.sim.engines.compiled_engine import flows_meet
from bfpp.sim.engines.cost_model import Costs
from bfpp.sim.models.model import load_model
from tests.helpers.strategies import drawn_ports, graphs, order_graphs

MANY = settings(derandomize=True, deadline=None, max_examples=150)


@st.composite
def drawn_costs(draw, graph):
    """Seconds and bytes of any size, zero included, through no, few or many ports."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tasks, ports = len(graph), draw(st.sampled_from([0, 1, 2, 5, 40]))
    whole = draw(st.booleans())
    seconds = random.integers(0, 4, tasks).astype(float) if whole else random.exponential(1, tasks)
    if not ports:
        return replace(AbstractCosts().costs(graph), seconds=seconds)
    moves = random.random(tasks) < draw(st.sampled_from([0.05, 0.5, 1]))
    return Costs(
        seconds,
        np.where(moves, random.integers(1, 50, tasks), 0).astype(float),
        drawn_ports(random, tasks, ports, draw(st.integers(1, 4))),
        random.integers(1, 9, ports).astype(float),
    )


def assert_agree(graph, costs):
    slow = simpy_engine.simulate(graph, costs)
    fast = compiled_engine.simulate(graph, costs)
    np.testing.assert_array_equal(fast.start, slow.start)
    np.testing.assert_array_equal(fast.end, slow.end)


@MANY
@given(st.data())
def test_engines_agree_on_drawn_costs(data):
    """Of every schedule, and of orders with halves, blocks and copies."""
    graph = data.draw(graphs() | order_graphs())
    assert_agree(graph, data.draw(drawn_costs(graph)))


@MANY
@given(
    st.sampled_from(["gpipe", "1f1b", "depth-first", "breadth-first"]),
    st.sampled_from(Sharding),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(2, 1), (2, 2), (4, 2), (1, 4)]),
    st.sampled_from([(1, 8), (2, 2), (8, 1), (1, 1), (4, 4)]),
    st.sampled_from(["dgx1-v100", "dgx1-v100-ethernet", "dgx-h100"]),
)
def test_engines_agree_on_models_and_clusters(
    name, sharding, pp_overlap, dp_overlap, size, groups, cluster
):
    layout = find_schedule(name).divided(size[0], size[0] * 2, size[1])
    graph = build_graph(name, layout, Communication(sharding, pp_overlap, dp_overlap))
    costs = PhysicalCosts(
        load_model("bert-6.6b"), load_cluster(cluster), Degrees(tp=groups[0], dp=groups[1])
    )
    assert_agree(graph, costs.costs(graph))


def test_engines_agree_with_and_without_contention():
    graph = build_graph("depth-first", Layout(4, 8, 4), Communication(Sharding.FULL))
    random = np.random.default_rng(0)
    costs = AbstractCosts(transfer=0.25, gather=0.5, reduce=0.75).costs(graph)
    assert_agree(graph, costs)
    ports = drawn_ports(random, len(graph), 3, 2)
    size = random.integers(0, 9, len(graph)).astype(float)
    shared = replace(costs, bytes=size, ports=ports, bandwidth=np.ones(3))
    assert_agree(graph, shared)


def test_ports_that_nobody_shares_need_one_sweep_only(monkeypatch):
    graph = build_graph("breadth-first", Layout(4, 8, 2))
    costs = PhysicalCosts(load_model("bert-52b"), load_cluster("dgx1-v100"), Degrees(tp=8)).costs(
        graph
    )
    start, end = compiled_engine.times(graph, costs)
    assert (costs.bytes > 0).any()
    assert not flows_meet(costs, start, end)
    monkeypatch.setattr(core, "replay", None)
    compiled_engine.times(graph, costs)


@pytest.mark.parametrize("engine", [compiled_engine, simpy_engine])
def test_two_flows_at_once_take_twice_as_long(engine):
    """Both ranks gather at the start, six bytes through one port of three bytes a second."""
    communication = Communication(Sharding.PARTIAL)
    graph = build_graph("gpipe", Layout(2, 1), communication)
    gathers = graph.operation == Operation.GATHER
    port = np.where(gathers, 0, NONE).astype(np.int32)
    costs = replace(
        AbstractCosts().costs(graph),
        bytes=np.where(gathers, 6.0, 0.0),
        ports=port[:, None],
        bandwidth=np.array([3.0]),
    )
    assert engine.simulate(graph, costs).end[gathers].tolist() == [4, 4]

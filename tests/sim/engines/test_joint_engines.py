"""Replicas that differ: both engines, and a plain simulator written from the rules, agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.schedules import Communication, Degrees, Layout, build_graph, find_schedule
from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.replicas.joint_graph import joined
from bfpp.schedules.validity.meetings import joint_violations
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines.cost_model import Costs, fixed_costs
from bfpp.sim.engines.engines import simulate, simulate_joint
from bfpp.sim.models.model import load_model
from tests.helpers.plain_replicas import Stuck, plain_times
from tests.helpers.strategies import compared, drawn_ports, joint_steps


def drawn_costs(graphs, seed, ports):
    """Costs of each replica: seconds of few sizes, so that many tasks end at one instant."""
    random, drawn = np.random.default_rng(seed), []
    for graph in graphs:
        seconds = random.integers(0, 4, len(graph)) * 0.5
        moved = np.where(random.random(len(graph)) < 0.5, random.integers(1, 9, len(graph)), 0.0)
        places = drawn_ports(random, len(graph), ports, 2) if ports else None
        drawn.append(
            Costs(seconds, moved, places, random.integers(1, 5, ports).astype(float))
            if ports
            else fixed_costs(seconds * random.exponential(1))
        )
    return drawn


@compared(200)
@given(joint_steps(), st.integers(0, 2**32 - 1))
def test_replicas_run_as_in_a_plain_simulator(step, seed):
    graphs, groups = step
    joint, costs = joined(graphs, groups), drawn_costs(graphs, seed, ports=0)
    stuck = {each.rule for each in joint_violations(joint)} == {"deadlock"}
    if stuck:
        with pytest.raises(Stuck):
            plain_times(graphs, [each.seconds for each in costs], groups)
        return
    timeline = simulate_joint(joint, costs)
    expected = plain_times(graphs, [each.seconds for each in costs], groups)
    begins = joint.begins.tolist()
    for (replica, number), (start, end) in expected.items():
        task = begins[replica] + number
        assert (timeline.start[task], timeline.end[task]) == (start, end)


@compared(60)
@given(joint_steps(), st.integers(0, 2**32 - 1), st.sampled_from([0, 1, 3, 20]))
def test_both_engines_agree_to_the_last_bit(step, seed, ports):
    graphs, groups = step
    joint, costs = joined(graphs, groups), drawn_costs(graphs, seed, ports)
    if joint_violations(joint):
        return
    fast, slow = (simulate_joint(joint, costs, engine) for engine in ("compiled", "simpy"))
    np.testing.assert_array_equal(fast.start, slow.start)
    np.testing.assert_array_equal(fast.end, slow.end)


@pytest.mark.parametrize("sharding", ["none", "full"])
@pytest.mark.parametrize("name", ["1f1b", "breadth-first"])
def test_alike_replicas_of_a_model_run_as_the_one_that_stands_for_them(name, sharding):
    layout = find_schedule(name).divided(4, 8, 2)
    graph = build_graph(name, layout, Communication(sharding, clipping=True))
    model = load_model("bert-6.6b"), load_cluster("dgx1-v100-ethernet"), Degrees(dp=4, tp=2)
    costs = PhysicalCosts(*model)
    alone = simulate(graph, costs)
    joint = simulate_joint(joined([graph] * 3), [costs.costs(graph)] * 3)
    for replica in range(3):
        np.testing.assert_array_equal(joint.of(replica).start, alone.start)
        np.testing.assert_array_equal(joint.of(replica).end, alone.end)


def test_one_replica_is_its_graph():
    graph = build_graph("1f1b", Layout(4, 8))
    assert joined([graph]).digest == graph.digest != joined([graph] * 2).digest


def test_wrong_replicas_and_unknown_engines_are_refused():
    graph = build_graph("1f1b", Layout(2, 2))
    costs = [AbstractCosts().costs(graph)] * 2
    with pytest.raises(InvalidConfiguration, match="engine: 'none' is not one of compiled, simpy"):
        simulate_joint(joined([graph] * 2), costs, "none")
    alone = replace(joined([graph] * 2), meeting=np.full(2 * len(graph), -1))
    with pytest.raises(InvalidConfiguration, match="meets no other replica"):
        simulate_joint(alone, costs)

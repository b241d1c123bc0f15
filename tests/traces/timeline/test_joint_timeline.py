"""Timelines of replicas: each one's waits for the others, and the path through all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.schedules import Communication, Layout, Operation, build_graph
from bfpp.schedules.replicas.joint_graph import joined
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.cost_model import fixed_costs
from bfpp.sim.engines.engines import simulate, simulate_joint
from bfpp.traces.explain.causes import Causes
from bfpp.traces.explain.looks import Cause
from tests.helpers.strategies import compared, joint_steps

GRAPH = build_graph("1f1b", Layout(4, 8))


def slowed(factor):
    """Three replicas, of which the last one's passes take so many times as long."""
    costs = AbstractCosts(transfer=0.25, reduce=0.5).costs(GRAPH)
    slow = np.where(GRAPH.is_compute, factor, 1.0) * costs.seconds
    return simulate_joint(joined([GRAPH] * 3), [costs, costs, fixed_costs(slow)])


def test_what_a_replica_waits_for_another_is_told_from_its_own_waits():
    alone = simulate(GRAPH, AbstractCosts(transfer=0.25, reduce=0.5))
    joint = slowed(1.5)
    first, last = (Causes(joint.of(replica)) for replica in (0, 2))
    passes = GRAPH.is_compute
    np.testing.assert_array_equal(joint.of(0).end[passes], alone.end[passes])
    waited = joint.step_time - alone.step_time
    assert first.idle[0][Cause.REPLICAS] == pytest.approx(waited)
    assert [idle[Cause.REPLICAS] for idle in last.idle] == [0.0] * 4
    for causes in (first, last):
        for idle, metrics in zip(causes.idle, causes.timeline.rank_times.busy, strict=True):
            assert sum(idle.values()) == pytest.approx(joint.step_time - metrics)


def test_alike_replicas_wait_for_nobody():
    joint = slowed(1.0)
    for replica in range(3):
        causes = Causes(joint.of(replica))
        assert [idle[Cause.REPLICAS] for idle in causes.idle] == [0.0] * 4
        assert causes.mean_rank == Causes(simulate(GRAPH, AbstractCosts(
            transfer=0.25, reduce=0.5))).mean_rank  # fmt: skip


def test_the_critical_path_is_in_the_replica_that_others_wait_for():
    joint = slowed(1.5)
    replicas = [joint.graph.place(task)[0] for task in joint.critical_path]
    reduction = next(
        number
        for number, task in enumerate(joint.critical_path)
        if GRAPH.operation[joint.graph.place(task)[1]] == Operation.REDUCE
    )
    assert {*replicas[:reduction]} == {2}


@compared(80)
@given(joint_steps(), st.integers(0, 2**32 - 1))
def test_the_critical_path_is_the_step_without_a_gap(step, seed):
    graphs, groups = step
    random = np.random.default_rng(seed)
    costs = [fixed_costs(random.integers(0, 9, len(graph)) * 1.0) for graph in graphs]
    joint = simulate_joint(joined(graphs, groups), costs)
    path = np.array(joint.critical_path)
    assert joint.start[path[0]] == 0.0
    np.testing.assert_array_equal(joint.end[path[:-1]], joint.start[path[1:]])
    assert joint.end[path[-1]] == joint.step_time
    assert (joint.ready <= joint.start).all()


def test_each_replica_is_a_timeline_with_its_name():
    joint = slowed(1.5)
    assert repr(joint) == f"<JointTimeline of {joint.graph!r}: {joint.step_time:.6g} s, compiled>"
    assert joint.of(1).graph is GRAPH
    assert joint.of(1).source == "compiled"
    clipped = build_graph("1f1b", Layout(2, 2), Communication(clipping=True))
    assert joined([clipped] * 2).words(len(clipped)).endswith("of replica 1")

"""Joint tasks of replicas: the core's replay against a few lines of Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.schedules import (
    Communication,
    InvalidInput,
    Layout,
    Operation,
    TaskGraph,
    build_graph,
)
from bfpp.schedules.replicas.joint_tasks import JointTasks
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import simulate


@st.composite
def joint_tasks(draw) -> tuple[JointTasks, np.ndarray]:
    """Tasks whose edges go from earlier to later meetings, numbered in any order."""
    tasks = draw(st.integers(1, 12))
    group = np.array([draw(st.integers(0, tasks)) for _ in range(tasks)])
    meets = np.array([draw(st.booleans()) for _ in range(tasks)])
    pairs = [
        (before, after)
        for before in range(tasks)
        for after in range(tasks)
        if group[before] < group[after] and draw(st.booleans())
    ]
    before, after = np.array(pairs, dtype=int).reshape(-1, 2).T
    seconds = np.array([draw(st.integers(0, 9)) for _ in range(tasks)], dtype=float)
    return JointTasks(before, after, np.where(meets, group, -1)), seconds


def reference(tasks: JointTasks, seconds: np.ndarray) -> list[float]:
    """End of each task, by looking again until nothing changes."""
    ready, end = [0.0] * len(tasks), [0.0] * len(tasks)
    while True:
        before = list(end)
        for task in range(len(tasks)):
            ahead = tasks.before[tasks.after == task]
            ready[task] = max((end[each] for each in ahead), default=0.0)
        for task, meeting in enumerate(tasks.meeting):
            met = [task] if meeting < 0 else np.flatnonzero(tasks.meeting == meeting)
            end[task] = max(ready[each] for each in met) + seconds[task]
        if end == before:
            return end


@given(joint_tasks())
def test_tasks_end_when_they_would_by_hand(drawn):
    tasks, seconds = drawn
    assert tasks.replay(seconds).tolist() == reference(tasks, seconds)


@pytest.mark.parametrize(
    ("before", "after", "meeting"),
    [([0, 1], [1, 0], [-1, -1]), ([0, 2], [1, 0], [5, -1, 5]), ([0], [1], [3, 3])],
)
def test_a_circle_is_refused(before, after, meeting):
    tasks = JointTasks(np.array(before), np.array(after), np.array(meeting))
    with pytest.raises(InvalidInput, match="in a circle"):
        tasks.replay(np.ones(len(tasks)))


# Replicas of our own graphs

COSTS = AbstractCosts(forward=1.0, backward=2.0, transfer=0.25, gather=0.5, reduce=0.75)


def replicated(graph: TaskGraph, replicas: int) -> JointTasks:
    """The tasks of a graph in each replica; their gathers and reductions meet."""
    start, member = graph.predecessors
    after = np.repeat(np.arange(len(graph)), np.diff(start))
    offset = np.arange(replicas)[:, np.newaxis] * len(graph)
    meets = np.isin(graph.operation, [Operation.GATHER, Operation.REDUCE])
    meeting = np.where(meets, np.arange(len(graph)), -1)
    edges = ((each + offset).ravel() for each in (member, after))
    return JointTasks(*edges, np.tile(meeting, replicas))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "breadth-first", "zb-h1"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_alike_replicas_run_as_the_one_pipeline_that_stands_for_them(name, replicas):
    loops = 2 if name == "breadth-first" else 1
    graph = build_graph(name, Layout(3, 6, loops), Communication(sharding="full"))
    seconds = COSTS.costs(graph).seconds
    ends = replicated(graph, replicas).replay(np.tile(seconds, replicas))
    for own in ends.reshape(replicas, -1):
        assert own == pytest.approx(simulate(graph, COSTS).end)


def test_a_slow_replica_makes_the_others_wait_where_they_meet_and_only_there():
    graph = build_graph("1f1b", Layout(3, 6), Communication(sharding="none"))
    alone = COSTS.costs(graph).seconds
    slow = np.where(graph.is_compute, 1.5, 1.0) * alone
    first, second = replicated(graph, 2).replay(np.concatenate([alone, slow])).reshape(2, -1)
    passes = graph.is_compute
    assert first[passes] == pytest.approx(simulate(graph, COSTS).end[passes])
    reductions = graph.operation == Operation.REDUCE
    assert first[reductions] == pytest.approx(second[reductions])
    assert first.max() > simulate(graph, COSTS).end.max() + 1

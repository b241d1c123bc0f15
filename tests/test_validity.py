"""The checker accepts every graph that is made, and objects to every graph that computes wrong."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bfpp.schedules import (
    Communication,
    Layout,
    Sharding,
    TaskGraph,
    build_graph,
    find_schedule,
    lower,
)
from bfpp.schedules.steps import STEP, backward, forward
from bfpp.schedules.validity import violations
from bfpp.schedules.validity.happens_before import happens_before, network, replay
from tests.mutations import MUTATIONS, changed, drop_dependency, waiting_less
from tests.strategies import graphs, order_graphs
from tests.toy_execution import flaw

MEANING = {"deadlock", "precedence", "delivery", "weights", "gradients", "optimizer"}
"""Rules that no graph breaks which computes the right weights whatever takes how long.

The others also ask for good order: no work done twice, no task on a stranger's lane.
"""

steady = settings(
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def rules(graph: TaskGraph) -> set[str]:
    return {violation.rule for violation in violations(graph)}


def judge(graph: TaskGraph) -> tuple[bool, bool]:
    """Whether a graph computes wrong, and whether the checker objects; compares the two."""
    wrong, broken = flaw(graph), rules(graph)
    assert broken or wrong is None, f"the checker misses: {wrong}"
    assert wrong or not broken or broken - MEANING, f"the checker cries wolf: {violations(graph)}"
    return wrong is not None, bool(broken)


@settings(steady, max_examples=250)
@given(graphs())
def test_schedules_make_valid_graphs(graph: TaskGraph) -> None:
    assert violations(graph) == []


@settings(steady, max_examples=600)
@given(order_graphs())
def test_orders_that_can_run_make_valid_graphs(graph: TaskGraph) -> None:
    assert violations(graph) == []


@pytest.mark.parametrize("sharding", Sharding)
def test_a_backward_run_may_begin_before_the_last_forward_run(sharding: Sharding) -> None:
    steps = [
        *(forward(0, 0), forward(1, 0), backward(1, 0)),
        *(forward(0, 1), forward(1, 1), backward(1, 1)),
        *(backward(0, 0), backward(0, 1)),
    ]
    order = np.array(steps, dtype=STEP)
    assert violations(lower([order], Layout(1, 2, 2), Communication(sharding))) == []


@settings(steady, max_examples=60)
@given(graphs(3, 2, cells=9) | order_graphs(3, 2))
def test_valid_graphs_compute_the_right_weights(graph: TaskGraph) -> None:
    assert judge(graph) == (False, False)


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_checker_objects_to_graphs_that_compute_wrong(name: str) -> None:
    seen: Counter[tuple[bool, bool]] = Counter()

    @settings(steady, max_examples=200, database=None)
    @given(graphs(3, 2, cells=9) | order_graphs(3, 2), st.data())
    def mutate(graph: TaskGraph, data: st.DataObject) -> None:
        mutant = MUTATIONS[name](graph, lambda items: data.draw(st.sampled_from(items)))
        if mutant is not None:
            seen[judge(mutant)] += 1

    mutate()
    assert seen[True, True] > 5


@settings(steady, max_examples=300)
@given(graphs(3, 2, cells=6) | order_graphs(2, 2), st.data())
def test_the_checker_objects_after_several_mutations(graph: TaskGraph, data: st.DataObject) -> None:
    for name in data.draw(st.lists(st.sampled_from(list(MUTATIONS)), min_size=2, max_size=4)):
        mutant = MUTATIONS[name](graph, lambda items: data.draw(st.sampled_from(items)))
        graph = mutant or graph
    judge(graph)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("sharding", Sharding)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "depth-first", "breadth-first"])
def test_dependencies_without_which_all_is_well(
    schedule: str, sharding: Sharding, overlap: bool
) -> None:
    layout = find_schedule(schedule).divided(2, 2, 2)
    graph = build_graph(schedule, layout, Communication(sharding, overlap, overlap))
    edges = [(task.number, other) for task in graph.tasks() for other in task.dependencies]
    seen = Counter(judge(waiting_less(graph, *edge)) for edge in edges)
    assert set(seen) <= {(False, False), (True, True)}
    assert (seen[True, True] > len(edges) // 4) is overlap, "lanes alone order what never overlaps"


@settings(steady, max_examples=30)
@given(order_graphs(3, 2), st.data())
def test_happens_before_is_reachability(graph: TaskGraph, data: st.DataObject) -> None:
    graph = drop_dependency(graph, lambda items: data.draw(st.sampled_from(items))) or graph
    order, waits = happens_before(graph), network(graph)
    for task in range(len(graph)):
        before = {other for other in range(len(graph)) if order(other, task)}
        assert before == nx.ancestors(waits, task)


@settings(steady, max_examples=60)
@given(graphs(3, 2, cells=9), st.data())
def test_the_replay_ends_unless_tasks_wait_in_a_circle(
    graph: TaskGraph, data: st.DataObject
) -> None:
    task, other = (graph.task(data.draw(st.integers(0, len(graph) - 1))) for _ in range(2))
    graph = changed(graph, task.number, dependencies=(*task.dependencies, other.number))
    assert (replay(graph) == {}) is nx.is_directed_acyclic_graph(network(graph))

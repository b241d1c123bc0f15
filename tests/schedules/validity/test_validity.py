"""The checker accepts every graph that is made, and objects to every graph that computes wrong."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Sharding,
    TaskGraph,
    build_graph,
    find_schedule,
    lower,
    registered_schedules,
)
from bfpp.schedules.columns import NONE
from bfpp.schedules.graph.wait_cycles import short_cycle
from bfpp.schedules.orders.steps import STEP, backward, forward
from bfpp.schedules.validity import Kind, violations
from bfpp.schedules.validity.happens_before import HappensBefore, replay
from tests.helpers.covering import covering
from tests.helpers.mutations import (
    MUTATIONS,
    changed,
    one_more_gather,
    one_more_reduction,
    waiting_less,
)
from tests.helpers.strategies import graphs, order_graphs, some_configuration
from tests.helpers.toy_execution import flaw

MEANING = {
    "deadlock", "precedence", "delivery", "weights", "gradients", "replicas", "optimizer",
}  # fmt: skip
"""Rules that no graph breaks which computes the right weights whatever takes how long.

The others also ask for good order: no work done twice, no task on a stranger's lane.
"""

steady = settings(
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def objections(graph: TaskGraph) -> set[str]:
    """The rules that are broken, but for when what is of no use is done."""
    found = violations(graph)
    useless = {each.tasks[0] for each in found if each.message.endswith("is of no use")}
    return {
        each.rule
        for each in found
        if each.kind is Kind.WRONG
        and not (each.rule in ("replicas", "optimizer") and useless & {*each.tasks})
    }


def judge(graph: TaskGraph) -> tuple[bool, bool]:
    """Compare if a graph computes wrong with if the checker objects.

    Remarks are no objections.
    """
    wrong, broken = flaw(graph), objections(graph)
    assert broken or wrong is None, f"the checker misses: {wrong}"
    assert wrong or not broken or broken - MEANING, f"the checker cries wolf: {violations(graph)}"
    return wrong is not None, bool(broken)


@settings(steady, max_examples=100)
@given(graphs())
def test_schedules_make_valid_graphs(graph: TaskGraph) -> None:
    assert violations(graph) == []


@settings(steady, max_examples=120)
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


@settings(steady, max_examples=40)
@given(graphs(3, 2, cells=9) | order_graphs(3, 2))
def test_valid_graphs_compute_the_right_weights(graph: TaskGraph) -> None:
    assert judge(graph) == (False, False)


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_checker_objects_to_graphs_that_compute_wrong(name: str) -> None:
    seen: Counter[tuple[bool, bool]] = Counter()

    @settings(steady, max_examples=50, database=None)
    @given(graphs(3, 2, cells=9) | order_graphs(3, 2), st.data())
    def mutate(graph: TaskGraph, data: st.DataObject) -> None:
        mutant = MUTATIONS[name](graph, lambda items: data.draw(st.sampled_from(items)))
        if mutant is not None:
            seen[judge(mutant)] += 1

    mutate()
    assert seen[True, True] > 2


@settings(steady, max_examples=70)
@given(graphs(3, 2, cells=6) | order_graphs(2, 2), st.data())
def test_the_checker_objects_after_several_mutations(graph: TaskGraph, data: st.DataObject) -> None:
    for name in data.draw(st.lists(st.sampled_from(list(MUTATIONS)), min_size=2, max_size=4)):
        mutant = MUTATIONS[name](graph, lambda items: data.draw(st.sampled_from(items)))
        graph = mutant or graph
    judge(graph)


@settings(steady, max_examples=30)
@given(graphs(3, 2, cells=6) | order_graphs(2, 2), st.data())
def test_other_numbers_of_gathers_and_reductions_are_remarked_and_hide_nothing(
    graph: TaskGraph, data: st.DataObject
) -> None:
    def choose(items: Sequence[Any]) -> Any:
        return data.draw(st.sampled_from(items))

    has_more = False
    for more in data.draw(st.lists(st.sampled_from([one_more_gather, one_more_reduction]))):
        if richer := more(graph, choose):
            graph, has_more = richer, True
    assert judge(graph) == (False, False)
    assert bool(violations(graph)) is has_more
    judge(MUTATIONS[data.draw(st.sampled_from(list(MUTATIONS)))](graph, choose) or graph)


@pytest.mark.slow
@pytest.mark.parametrize("name", registered_schedules())
def test_no_mutation_of_a_schedule_that_computes_wrong_is_accepted(name: str) -> None:
    accepted_of(name, mutants=2000)


@pytest.mark.parametrize("name", registered_schedules())
def test_few_mutations_of_a_schedule_that_compute_wrong_are_refused(name: str) -> None:
    accepted_of(name, mutants=20)


def accepted_of(name: str, mutants: int) -> None:
    """Mutate the schedule's graphs; all that is accepted computes right."""
    chance, judged = random.Random(name), 0
    while judged < mutants:
        flags = chance.choices([True, False], k=3)
        communication = Communication(chance.choice(list(Sharding)), *flags)
        try:
            graph = some_configuration(find_schedule(name), 2, communication).graph()
        except InvalidConfiguration:
            continue
        for mutation in chance.choices(list(MUTATIONS.values()), k=chance.choice([1, 1, 2, 3])):
            graph = mutation(graph, lambda items: chance.choice([*items])) or graph
        judged += 1
        if not objections(graph):
            assert flaw(graph) is None, (graph.communication, list(graph.tasks()))


LOOPED_OR_NOT = ["gpipe", "1f1b", "depth-first", "breadth-first"]


@pytest.mark.parametrize(
    ("schedule", "sharding", "overlap"), covering(product(LOOPED_OR_NOT, Sharding, [True, False]))
)
def test_dependencies_without_which_all_is_well(
    schedule: str, sharding: Sharding, overlap: bool
) -> None:
    layout = find_schedule(schedule).divided(2, 2, 2)
    graph = build_graph(schedule, layout, Communication(sharding, overlap, overlap))
    edges = [(task.number, other) for task in graph.tasks() for other in task.dependencies]
    seen = Counter(judge(waiting_less(graph, *edge)) for edge in edges)
    assert set(seen) <= {(False, False), (True, True)}
    assert (seen[True, True] > len(edges) // 4) is overlap, "lanes alone order what never overlaps"


@settings(steady, max_examples=60)
@given(order_graphs(3, 2), st.lists(st.sampled_from(list(MUTATIONS)), max_size=3), st.data())
def test_happens_before_is_reachability(
    graph: TaskGraph, names: list[str], data: st.DataObject
) -> None:
    for name in names:
        graph = MUTATIONS[name](graph, lambda items: data.draw(st.sampled_from(items))) or graph
    turn, waits = replay(graph), graph.to_networkx()
    assert (turn != NONE).all() == nx.is_directed_acyclic_graph(waits)
    assume((turn != NONE).all())
    order, tasks = HappensBefore(graph, turn), np.arange(len(graph), dtype=np.int32)
    for task in range(len(graph)):
        before = tasks[order(tasks, np.full_like(tasks, task))].tolist()
        assert {*before} == nx.ancestors(waits, task)


@settings(steady, max_examples=60)
@given(graphs(3, 2, cells=9), st.data())
def test_a_deadlock_is_a_circle_of_tasks(graph: TaskGraph, data: st.DataObject) -> None:
    task, other = (graph.task(data.draw(st.integers(0, len(graph) - 1))) for _ in range(2))
    graph = changed(graph, task.number, dependencies=(*task.dependencies, other.number))
    turn, waits = replay(graph), graph.to_networkx()
    assert (turn != NONE).all() == nx.is_directed_acyclic_graph(waits)
    if (turn == NONE).any():
        stuck = short_cycle(graph.predecessors, turn)
        assert all(
            waits.has_edge(ahead, task)
            for task, ahead in zip(stuck, [*stuck[1:], *stuck[:1]], strict=True)
        )

"""The checker of replicas: nothing but whole groups that do the same at once is let through."""

from __future__ import annotations

from collections.abc import Callable
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
    TaskGraph,
    build_graph,
)
from bfpp.schedules.columns import NONE
from bfpp.schedules.replicas.joint_graph import JointGraph, joined
from bfpp.schedules.validity import violations
from bfpp.schedules.validity.meetings import joint_violations, require_valid_joint
from tests.helpers.mutations import MUTATIONS, find, rebuilt, waiting_less
from tests.helpers.plain_replicas import Stuck, plain_times
from tests.helpers.strategies import compared, joint_steps

FULL = Communication(Sharding.FULL, clipping=True)
IN_RUNS = Communication(Sharding.FULL, run_length=1)
HYBRID = Communication(Sharding.PARTIAL, clipping=True, hybrid=True)
GRAPH = build_graph("1f1b", Layout(2, 2), FULL)
GROUPED = build_graph("1f1b", Layout(2, 2), HYBRID)


def members(graph: JointGraph, operation: Operation, replica: int, nth: int = 0) -> int:
    """The number of a task of a replica."""
    own = find(graph.replicas[replica], operation)[nth].number
    return int(graph.begins[replica]) + own


def with_meetings(graph: JointGraph, changes: dict[int, int]) -> JointGraph:
    meeting = graph.meeting.copy()
    for task, other in changes.items():
        meeting[task] = other
    return replace(graph, meeting=meeting)


def exchanged(graph: JointGraph, one: int, other: int) -> JointGraph:
    """Two tasks in the meetings of each other."""
    meeting = graph.meeting
    return with_meetings(graph, {one: meeting[other], other: meeting[one]})


def left_out() -> JointGraph:
    graph = joined([GRAPH] * 3)
    return with_meetings(graph, {members(graph, Operation.REDUCE, 1): NONE})


def alone() -> JointGraph:
    graph = joined([GRAPH] * 3)
    return with_meetings(graph, {members(graph, Operation.REDUCE, 1): 10**6})


def anothers_gradient() -> JointGraph:
    """Replica 2 adds up the gradients of another stage."""
    graph = joined([GRAPH] * 3)
    both = (members(graph, Operation.REDUCE, 2, nth) for nth in (0, 1))
    return exchanged(graph, *both)


def gathered_for_a_reduction() -> JointGraph:
    graph = joined([GRAPH] * 2)
    kinds = Operation.REDUCE, Operation.GATHER
    return exchanged(graph, *(members(graph, each, 1) for each in kinds))


def own_pass_with_a_meeting() -> JointGraph:
    graph = joined([GRAPH] * 2)
    return with_meetings(graph, {members(graph, Operation.FORWARD, each): 10**6 for each in (0, 1)})


def of_another_group() -> JointGraph:
    """Replicas 1 and 2 shard their state with the wrong ones."""
    graph = joined([GROUPED] * 4, groups=2)
    return exchanged(graph, *(members(graph, Operation.REDUCE, each) for each in (1, 2)))


def of_another_member() -> JointGraph:
    """Replicas 2 and 3 add up the other one's share across groups."""
    graph = joined([GROUPED] * 4, groups=2)
    return exchanged(graph, *(members(graph, Operation.ALL_REDUCE, each) for each in (2, 3)))


def reduced_in_two_halves() -> JointGraph:
    graph = joined([GRAPH] * 4)
    tasks = (members(graph, Operation.REDUCE, each) for each in (2, 3))
    return with_meetings(graph, dict.fromkeys(tasks, 10**6))


def crossed_over() -> JointGraph:
    """The first reduction of each replica meets the second one of the other."""
    graph = joined([build_graph("breadth-first", Layout(1, 2, 2), FULL)] * 2)
    unit = [find(graph.replicas[0], Operation.GATHER, unit=1)[each].number for each in (0, 1)]
    return exchanged(graph, *(int(graph.begins[1]) + each for each in unit))


def own_gradient_too_early() -> JointGraph:
    """Replica 1 reduces what its last backward pass has not added to."""
    reduction = find(GRAPH, Operation.REDUCE)[0]
    late = [each for each in reduction.dependencies if GRAPH.is_compute[each]]
    return joined([GRAPH, waiting_less(GRAPH, reduction.number, late[0])])


def without_a_reduction() -> JointGraph:
    """Replica 1 has no reduction, and no place in its meeting."""
    dropped = find(GRAPH, Operation.REDUCE)[0].number
    other = rebuilt(GRAPH, [task for task in GRAPH.tasks() if task.number != dropped])
    graph = joined([GRAPH, GRAPH])
    place = int(graph.begins[1]) + dropped
    return replace(graph, replicas=(GRAPH, other), meeting=np.delete(graph.meeting, place))


def two_orders() -> list[TaskGraph]:
    """Two replicas that reduce their two stages in different orders."""
    graph = build_graph("gpipe", Layout(1, 1, units_per_stage=2))
    first, second = find(graph, Operation.REDUCE)
    others = [task for task in graph.tasks() if task.operation is not Operation.REDUCE]
    update = others.pop()._replace(dependencies=(first.number, second.number))
    return [graph, rebuilt(graph, [*others, second, first, update])]


def in_other_orders() -> JointGraph:
    return joined(two_orders())


def short_column() -> JointGraph:
    graph = joined([GRAPH] * 2)
    return replace(graph, meeting=graph.meeting[1:])


def below_none() -> JointGraph:
    return with_meetings(joined([GRAPH] * 2), {3: -2})


def of_another_model() -> JointGraph:
    graph = joined([GRAPH] * 2)
    return replace(graph, replicas=(GRAPH, build_graph("1f1b", Layout(3, 2), FULL)))


def of_another_sharding() -> JointGraph:
    return replace(joined([GRAPH] * 2), replicas=(GRAPH, GROUPED))


CASES: dict[Callable[[], JointGraph], tuple[str, str]] = {
    left_out: ("meetings", "of replica 1 meets no other replica"),
    alone: ("meetings", "of replica 1 meets without replica 0, 2"),
    anothers_gradient: ("meetings", "of replica 2 meets"),
    gathered_for_a_reduction: ("meetings", "of replica 1 meets"),
    own_pass_with_a_meeting: ("meetings", "is its replica's own, and yet has a meeting"),
    of_another_group: ("meetings", "of replica 2 meets"),
    of_another_member: ("meetings", "of replica 3 meets"),
    reduced_in_two_halves: ("meetings", "of replica 0 meets without replica 2, 3"),
    crossed_over: ("deadlock", "waits for"),
    own_gradient_too_early: ("gradients", "replica 1: "),
    without_a_reduction: ("gradients", "replica 1: "),
    in_other_orders: ("deadlock", "of replica 1 waits for"),
    short_column: ("columns", "column meeting has"),
    below_none: ("columns", "#3 has meeting -2, which does not exist"),
    of_another_model: ("replicas", "replica 1 has other stages"),
    of_another_sharding: ("replicas", "replica 1 communicates otherwise"),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_each_fault_is_found(case):
    rule, words = CASES[case]
    found = [(each.rule, each.message) for each in joint_violations(case())]
    assert any(name == rule and words in message for name, message in found), found
    with pytest.raises(InvalidConfiguration):
        require_valid_joint(case())


def test_replicas_in_different_orders_are_stuck():
    graphs = two_orders()
    assert [violations(graph) for graph in graphs] == [[], []]
    with pytest.raises(Stuck):
        plain_times(graphs, [[1.0] * len(graph) for graph in graphs])


@compared(100)
@given(joint_steps(), st.data())
def test_meetings_are_those_of_joined_replicas_or_wrong(step, data):
    graph = joined(*step)
    assert joint_violations(graph) == []
    meets = np.flatnonzero(graph.meeting != NONE)
    task = int(data.draw(st.sampled_from(meets.tolist())))
    numbers = [*np.unique(graph.meeting).tolist(), 10**6]
    other = data.draw(st.sampled_from(numbers))
    changed = with_meetings(graph, {task: other})
    same = np.unique(graph.meeting == graph.meeting[task], return_counts=True)[1][-1] == 1
    if other not in (graph.meeting[task], *([10**6] if same else [])):
        assert joint_violations(changed)


@compared(40)
@given(joint_steps(), st.sampled_from(list(MUTATIONS)), st.data())
def test_what_is_wrong_with_a_replica_is_wrong_with_all(step, name, data):
    graphs, groups = step
    mutated = MUTATIONS[name](graphs[0], lambda items: data.draw(st.sampled_from(items)))
    if mutated is None or not violations(mutated):
        return
    try:
        graph = joined([mutated, *graphs[1:]], groups)
    except InvalidConfiguration:
        return
    assert len(joint_violations(graph)) >= len(violations(mutated))


@pytest.mark.parametrize(
    ("replicas", "groups", "words"),
    [
        ([], 1, "there must be one at least"),
        ([GROUPED] * 3, 2, "must divide the 3 replicas"),
        ([GRAPH] * 2, 2, "needs hybrid sharding"),
        (
            [build_graph("1f1b", Layout(2, each), IN_RUNS) for each in (2, 3)],
            1,
            "replica 1 and replica 0 do not communicate equally often",
        ),
    ],
)
def test_replicas_that_cannot_be_joined_are_refused(replicas, groups, words):
    with pytest.raises(InvalidConfiguration, match=words):
        joined(replicas, groups)

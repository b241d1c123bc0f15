"""Faults that a rule of the checker can meet in several ways, and all that it says of them.

One example of each rule stands in `test_validity_rules.py`; here are their other branches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bfpp.schedules import (
    Communication,
    Layout,
    Operation,
    Sharding,
    TaskGraph,
    build_graph,
    find_schedule,
)
from bfpp.schedules.columns import NONE
from bfpp.schedules.graph.lanes import Lane
from bfpp.schedules.operations.streams import COMPUTE, RECEIVE_ACTIVATIONS, SEND_ACTIVATIONS
from bfpp.schedules.validity import violations
from tests.helpers.hand import require_golden
from tests.helpers.mutations import changed, find, rebuilt, twice, waiting_less


def first(graph: TaskGraph, operation: Operation, **fields: int) -> int:
    return find(graph, operation, **fields)[0].number


def lane(graph: TaskGraph, *lane_of: object) -> int:
    return graph.lanes.index(Lane(*lane_of))  # type: ignore[arg-type]


def both_ways() -> TaskGraph:
    schedule = find_schedule("chimera")
    return build_graph(schedule, schedule.layout(pp=2, microbatches=2))


def sent_to_another() -> TaskGraph:
    """Rank 0 sends to rank 2 what rank 1 needs, over a channel that both ends know."""
    graph = build_graph("gpipe", Layout(3, 1))
    lanes = (*graph.lanes, Lane(0, SEND_ACTIVATIONS, 2), Lane(2, RECEIVE_ACTIVATIONS, 0))
    graph = replace(graph, lanes=lanes)
    astray = first(graph, Operation.TRANSFER_ACTIVATIONS, unit=0)
    return changed(graph, astray, peer=2, lane=len(lanes) - 2, peer_lane=len(lanes) - 1)


def sent_for_nothing() -> TaskGraph:
    """The output of the last stage, which the loss is computed from, to the first one's rank."""
    graph = build_graph("gpipe", Layout(2, 1))
    lanes = (*graph.lanes, Lane(1, SEND_ACTIVATIONS, 0), Lane(0, RECEIVE_ACTIVATIONS, 1))
    number = len(graph)
    sent = graph.task(first(graph, Operation.TRANSFER_ACTIVATIONS))._replace(
        number=number, rank=1, peer=0, unit=1, lane=len(lanes) - 2, peer_lane=len(lanes) - 1,
        dependencies=(first(graph, Operation.FORWARD, unit=1),),
    )  # fmt: skip
    return rebuilt(replace(graph, lanes=lanes), [*graph.tasks(), sent])


def sent_twice() -> TaskGraph:
    graph = build_graph("gpipe", Layout(2, 1))
    return twice(graph, first(graph, Operation.TRANSFER_ACTIVATIONS))


def received_nowhere() -> TaskGraph:
    graph = build_graph("gpipe", Layout(2, 1))
    return changed(graph, first(graph, Operation.TRANSFER_ACTIVATIONS), peer_lane=NONE)


def computed_with_a_peer() -> TaskGraph:
    graph = build_graph("gpipe", Layout(2, 1))
    return changed(graph, first(graph, Operation.FORWARD), peer=1)


def two_lanes_of_a_kind() -> TaskGraph:
    graph = build_graph("gpipe", Layout(1, 1))
    return replace(graph, lanes=(*graph.lanes, Lane(0, COMPUTE)))


def reduced_for_no_unit() -> TaskGraph:
    graph = build_graph("gpipe", Layout(1, 1))
    return changed(graph, first(graph, Operation.REDUCE), unit=NONE)


def replicas_too_early() -> TaskGraph:
    """Groups of replicas add up gradients that the group itself has not."""
    communication = Communication(Sharding.FULL, hybrid=True)
    graph = build_graph("gpipe", Layout(1, 1), communication)
    late = first(graph, Operation.ALL_REDUCE)
    return waiting_less(graph, late, first(graph, Operation.REDUCE))


def copies_too_early() -> TaskGraph:
    """Both copies of a stage add up their gradients before rank 1 has its own."""
    graph = both_ways()
    reduction = find(graph, Operation.REDUCE, unit=0)[0]
    missing = find(graph, Operation.BACKWARD, unit=0, rank=1)[-1]
    return waiting_less(graph, reduction.number, missing.number)


def without_the_copy() -> TaskGraph:
    graph = both_ways()
    return changed(graph, first(graph, Operation.REDUCE, unit=0), peer=NONE)


CASES: tuple[Callable[[], TaskGraph], ...] = (
    sent_to_another, sent_for_nothing, sent_twice, received_nowhere, computed_with_a_peer,
    two_lanes_of_a_kind, reduced_for_no_unit, replicas_too_early, copies_too_early,
    without_the_copy,
)  # fmt: skip


def test_what_is_said_of_each_fault() -> None:
    lines = [
        line
        for case in CASES
        for line in (
            case.__name__,
            *(f"  {found.rule}: {found.message}" for found in violations(case())),
        )
    ]
    require_golden("wrong_graphs.txt", "\n".join(lines))

"""Gathers and reductions, counted without lowering, against those of the task graph."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from bfpp.schedules import Operation, TaskGraph
from bfpp.schedules.lowering import count_exchanges, step_table
from tests.helpers.strategies import compared, configurations


def counted(graph: TaskGraph, operation: Operation) -> list[int]:
    units = graph.unit[graph.operation == operation]
    return np.bincount(units, minlength=graph.layout.units).tolist()


@compared(200)
@given(configurations())
def test_as_many_are_counted_as_are_made(drawn):
    schedule, layout, communication = drawn[:3]
    steps = step_table(schedule.orders(layout), layout)
    gathers, reductions = count_exchanges(steps, layout, communication)
    graph = drawn.graph()
    assert gathers.tolist() == counted(graph, Operation.GATHER)
    assert reductions.tolist() == counted(graph, Operation.REDUCE)

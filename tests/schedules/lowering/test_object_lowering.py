"""A second lowering, in objects and plain Python, builds the same graphs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.schedules.object_lowering import STREAMS, lower_to_objects
from bfpp.schedules import (
    Communication,
    Layout,
    Sharding,
    build_graph,
    find_schedule,
    lower,
)
from bfpp.schedules.formats.graph_json import COLUMNS
from tests.helpers.strategies import communications, compared, configurations, orders, that_fits

MANY = compared(200)


def assert_same(graph, objects):
    """Every column, lane and set of dependencies."""
    tasks = objects.tasks  # too many for a message
    assert len(graph) == len(tasks)
    lanes = [(lane.rank, STREAMS.index(lane.stream.name), lane.peer) for lane in graph.lanes]
    assert lanes == objects.lanes
    for name in COLUMNS:
        expected = [int(getattr(task, name)) for task in objects.tasks]
        assert getattr(graph, name).tolist() == expected, name
    for number, task in enumerate(objects.tasks):
        expected = {dependency.number for dependency in task.dependencies}
        dependencies = graph.dependencies.of(number).tolist()
        assert set(dependencies) == expected
        assert len(dependencies) == len(expected)


def objects_of(schedule, layout, communication):
    steps = schedule.steps
    ranks = range(layout.pp)
    return lower_to_objects([steps(layout, rank) for rank in ranks], layout, communication)


@MANY
@given(configurations())
def test_both_lowerings_agree_on_schedules(configuration):
    assert_same(configuration.graph(), objects_of(*configuration))


@MANY
@given(orders(), st.data())
def test_both_lowerings_agree_on_any_orders(layout_and_orders, data):
    layout, steps = layout_and_orders
    communication = that_fits(layout, data.draw(communications()), steps)
    objects = lower_to_objects([order.tolist() for order in steps], layout, communication)
    assert_same(lower(steps, layout, communication), objects)


@pytest.mark.parametrize("sharding", Sharding)
@pytest.mark.parametrize("name", ["depth-first", "breadth-first"])
def test_both_lowerings_agree_on_a_larger_step(name, sharding):
    configuration = find_schedule(name), Layout(8, 32, 4), Communication(sharding)
    assert_same(build_graph(*configuration), objects_of(*configuration))


@given(st.data())
@settings(derandomize=True, deadline=None, max_examples=20)
def test_the_comparison_notices_a_difference(data):
    configuration = data.draw(configurations())
    objects = objects_of(*configuration)
    task = data.draw(st.sampled_from(objects.tasks))
    name = data.draw(st.sampled_from(COLUMNS))
    setattr(task, name, getattr(task, name) + 1)
    with pytest.raises(AssertionError):
        assert_same(configuration.graph(), objects)

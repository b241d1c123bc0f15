"""Two timelines laid over one another: by hand, and without remainder on every graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import Communication, Layout, Operation, Sharding, build_graph
from bfpp.schedules.columns import NONE
from bfpp.schedules.graph.comparison import differing_settings
from bfpp.schedules.operations.streams import COMPUTE
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import simulate
from bfpp.traces.explain.difference import DifferentGraphs, Pair, difference
from bfpp.traces.timeline.memory_record import MemoryRecord, steps_of
from bfpp.traces.timeline.timeline import MEASURED
from tests.helpers.measured import executed, measured
from tests.helpers.mutations import waiting_less
from tests.helpers.strategies import configurations

SOME = settings(derandomize=True, deadline=None, max_examples=40)
COSTS = AbstractCosts(forward=1.5, backward=2.5, transfer=0.25, gather=1, reduce=0.5)
CLOSE = 1e-5


@SOME
@given(measured())
def test_sums_are_those_of_the_two_timelines(timeline):
    simulated = simulate(timeline.graph, COSTS)
    found = difference(simulated, timeline)
    assert found.names == ("simulated", "measured")
    assert (found.simulated, found.measured) == (simulated, timeline)
    assert found.step_time == Pair(simulated.step_time, timeline.step_time)
    operations = found.operations.values()
    assert sum(each.count for each in operations) == len(timeline.graph)
    assert sum(each.total.measured for each in operations) == pytest.approx(timeline.duration.sum())
    twice = timeline.duration[timeline.graph.peer != NONE].sum()
    busy = sum(each.busy.measured for each in found.lanes)
    assert busy == pytest.approx(timeline.duration.sum() + twice)
    for rank in found.ranks:
        for name in ("simulated", "measured"):
            step_time = getattr(found.step_time, name)
            parts = getattr(rank.compute, name) + getattr(rank.idle, name)
            assert parts == pytest.approx(step_time, abs=CLOSE)
    differences = sum(pair.difference for pair in found.mean_rank.values())
    assert differences == pytest.approx(found.step_time.difference, abs=CLOSE)


@SOME
@given(measured(clock_error=0.2), st.booleans())
def test_either_order_says_the_same(timeline, swapped):
    simulated = simulate(timeline.graph, COSTS)
    pair = (timeline, simulated) if swapped else (simulated, timeline)
    found = difference(*pair)
    assert found.simulated is simulated
    sizes = [abs(each.duration.difference) for each in found.worst]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[:1] == pytest.approx([np.abs(simulated.duration - timeline.duration).max()])
    drifts = [abs(each.start.difference) for each in found.drifted]
    assert drifts == sorted(drifts, reverse=True)


@SOME
@given(measured())
def test_nothing_differs_from_itself_at_another_hour(timeline):
    moved = replace(timeline, start=timeline.start + 8192, end=timeline.end + 8192)
    found = difference(timeline, moved)
    assert found.names == ("first (measured)", "second (measured)")
    assert found.step_time.error == pytest.approx(0)
    assert all(abs(each.start.difference) < CLOSE for each in found.drifted)


def graph():
    return build_graph("gpipe", Layout(2, 1))


def test_an_example_by_hand():
    """Forward passes take 1 and really 2 seconds, transfers of half a second really none."""
    simulated = simulate(graph(), AbstractCosts(1, 2, transfer=0.5))
    really = replace(simulate(graph(), AbstractCosts(2, 2)), source=MEASURED)
    found = difference(simulated, really)
    assert found.step_time == Pair(1 + 0.5 + 1 + 2 + 0.5 + 2, 2 + 2 + 2 + 2)
    assert found.step_time.error == -1 / 8
    forward = found.operations[Operation.FORWARD]
    assert (forward.count, forward.mean, forward.mean.error) == (2, Pair(1, 2), -0.5)
    assert found.operations[Operation.TRANSFER_GRADIENTS].mean == Pair(0.5, 0)
    assert found.operations[Operation.TRANSFER_GRADIENTS].mean.error is None
    assert [each.busy for each in found.lanes if each.lane.stream is COMPUTE] == [
        Pair(3, 4),
        Pair(3, 4),
    ]
    assert found.mean_rank["transfer"] == Pair(1.0, 0)
    assert [each.task.operation for each in found.worst[:2]] == [Operation.FORWARD] * 2
    assert found.worst[0].duration == Pair(1, 2)
    assert found.drifted[0].start == Pair(1 + 0.5 + 1, 2 + 2)
    assert found.drifted[0].task.operation is Operation.BACKWARD


def test_what_stays_all_the_time_peaks_during_the_first_step():
    """The moment before a rank's first step is during no task."""
    timeline = simulate(graph(), AbstractCosts())
    ranks = range(timeline.graph.layout.pp)
    stays = [{"weights": np.full(len(steps_of(timeline.graph, rank)), 5.0)} for rank in ranks]
    memory = [MemoryRecord(rank, stays[rank], stays[rank]) for rank in ranks]
    found = difference(*[replace(timeline, memory=memory)] * 2)
    first = [int(timeline.compute_tasks(rank)[0]) for rank in ranks]
    assert [each.simulated_task.number for each in found.memory] == first


CHANGES = {
    "ranks (2 and 4)": {"layout": Layout(4, 4, 2)},
    "micro-batches (4 and 8)": {"layout": Layout(2, 8, 2)},
    "stages (4 and 6)": {"layout": Layout(2, 4, 3)},
    "sharding (none and full)": {"communication": Communication(Sharding.FULL)},
    "schedule (depth-first and breadth-first)": {"schedule": "breadth-first"},
    "overlap of transfers (True and False)": {"communication": Communication(pp_overlap=False)},
    "clipping (False and True)": {"communication": Communication(clipping=True)},
    "offload (0 and 1)": {"communication": Communication(offload=1)},
}


@pytest.mark.parametrize("reason", CHANGES)
def test_timelines_of_different_steps_are_refused(reason):
    usual = {
        "schedule": "depth-first", "layout": Layout(2, 4, 2), "communication": Communication(),
    }  # fmt: skip
    first, second = build_graph(**usual), build_graph(**{**usual, **CHANGES[reason]})
    with pytest.raises(DifferentGraphs) as caught:
        difference(executed(first, 0), simulate(second, COSTS))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_graphs_of_the_same_settings_can_differ():
    whole = graph()
    task = next(task for task in whole.tasks() if task.dependencies)
    other = waiting_less(whole, task.number, task.dependencies[0])
    assert differing_settings(whole, other) == "the order or the dependencies of the tasks"


@SOME
@given(configurations(), configurations())
def test_differing_settings_are_named(first, second):
    named = differing_settings(first.graph(), second.graph())
    assert bool(named) == (first.graph().digest != second.graph().digest)
    assert named or first[1:] == second[1:]

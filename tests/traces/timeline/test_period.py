"""The period, against simulations of several steps in a row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.api.predictions import predict
from bfpp.api.saved import SavedTimeline
from bfpp.schedules import Communication, TaskGraph, build_graph, find_schedule
from bfpp.schedules.columns import NONE, Groups, group_by
from bfpp.schedules.graph.task_columns import COLUMNS
from bfpp.schedules.operations.operations import Operation
from bfpp.schedules.replicas.joint_graph import joined
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.compiled_engine import simulate as replay
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.traces.timeline.metrics import bubble, bubble_fraction, rank_metrics, span
from bfpp.traces.timeline.period import joint_period, period
from bfpp.traces.timeline.timeline import showing
from tests.helpers.strategies import graphs, joint_steps

STEPS, TRANSIENT = 24, 18
CYCLES = 6
"""Steps after which ends repeat: a multiple of every cycle through at most three ranks."""

JOINT_STEPS, JOINT_CYCLES = 60, 12
"""Of replicas, a cycle may go through more ranks."""

whole = st.integers(0, 7)


def several(graph: TaskGraph, steps: int) -> TaskGraph:
    """The step several times over, each rank's next one after its own optimizer."""
    size = len(graph)

    def tiled(column):
        return np.tile(column, steps)

    def shifted(column):
        return np.concatenate([np.where(column == NONE, NONE, column + step * size)
                               for step in range(steps)])  # fmt: skip

    optimizer = np.flatnonzero(graph.operation == Operation.OPTIMIZER)
    ends = optimizer[np.argsort(graph.rank[optimizer])]
    received = np.flatnonzero(graph.peer != NONE)
    gated = np.append(np.arange(size), received)
    gates = ends[np.append(graph.rank, graph.peer[received])]
    task, after = [shifted(graph.dependent)], [shifted(graph.dependencies.member)]
    for step in range(1, steps):
        task.append(gated + step * size)
        after.append(gates + (step - 1) * size)
    dependencies: Groups = group_by(np.concatenate(task), np.concatenate(after), steps * size)
    return replace(
        graph, **{name: tiled(getattr(graph, name)) for name in COLUMNS}, dependencies=dependencies
    )


@settings(derandomize=True, deadline=None, max_examples=60)
@given(graphs(3, 3, cells=12), whole, whole, whole, whole, whole, whole)
def test_the_period_is_that_of_many_steps(graph, forward, back, weight, transfer, data, optimizer):
    costs = AbstractCosts(
        forward=forward,
        backward_input=back,
        backward_weight=weight,
        transfer=transfer,
        gather=data,
        reduce=data,
        optimizer=optimizer,
        norm=1,
    )
    steps = several(graph, STEPS)  # no single step, which is what a checker knows
    found = replay(steps, costs.costs(steps)).end.reshape(STEPS, -1)
    apart = (found[-1] - found[-1 - CYCLES]) / CYCLES
    assert apart == pytest.approx(period(simulate(graph, costs)))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(joint_steps(), st.data())
def test_the_period_of_replicas_is_that_of_many_steps(drawn, data):
    replicas, groups = drawn
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    seconds = [random.integers(0, 8, len(graph)).astype(float) for graph in replicas]
    steps = joined([several(graph, JOINT_STEPS) for graph in replicas], groups)
    many = np.concatenate([np.tile(each, JOINT_STEPS) for each in seconds])
    ends = [
        own.reshape(JOINT_STEPS, -1).max(axis=1)
        for own in np.split(steps.tasks.replay(many), steps.begins[1:-1])
    ]
    apart = max((own[-1] - own[-1 - JOINT_CYCLES]) / JOINT_CYCLES for own in ends)
    found = joint_period(joined(replicas, groups), np.concatenate(seconds))
    assert found == pytest.approx(apart)


def test_a_replica_that_others_wait_for_sets_their_period():
    values = {"pp": 2, "dp": 2, "microbatches": 4, "reduce": 0.4}
    found = predict(Experiment("1f1b", slow="rank=1,replica=1:1.5", **values))
    both = [period(each) for each in found.replicas.timelines]
    assert both[0] < both[1]
    assert found.record["period"] == pytest.approx(both[1])
    assert SavedTimeline(showing(found.whole_timeline, 0)).record["period"] == pytest.approx(
        both[1]
    )
    alike = predict(Experiment("1f1b", slow="rank=0:1.5", **values))
    assert alike.record["period"] == pytest.approx(period(alike.timeline))


@pytest.mark.parametrize("clipping", [False, True])
def test_only_ranks_that_do_not_wait_have_no_bubble(clipping):
    """ZB-H2's stagger costs nothing from step to step, unless clipping makes ranks wait."""
    schedule = find_schedule("zb-h2")
    graph = build_graph(schedule, schedule.layout(8, 24), Communication(clipping=clipping))
    timeline = simulate(graph, AbstractCosts(forward=1, backward_input=1, backward_weight=1))
    assert timeline.step_time == 79
    assert span(rank_metrics(timeline)) == 72
    assert period(timeline) == (79 if clipping else 72)


def test_bubbles_are_shares_of_the_compute_and_of_the_step():
    graph = build_graph("1f1b", find_schedule("1f1b").layout(8, 24))
    timeline = simulate(graph, AbstractCosts())
    assert bubble(timeline) == pytest.approx(7 / 24)
    assert bubble_fraction(timeline) == pytest.approx(7 / 31)
    assert period(timeline) == timeline.step_time

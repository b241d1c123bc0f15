"""Causes of idle time: worked by hand, and without remainder on every graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import Communication, Layout, Operation, Sharding, build_graph
from bfpp.schedules.columns import NONE
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.parameters import Scaled
from bfpp.sim.engines.compiled_engine import simulate
from bfpp.traces.explain.causes import Cause, Causes
from bfpp.traces.timeline.metrics import rank_metrics
from bfpp.traces.timeline.timeline import Timeline
from tests.helpers.strategies import graphs, order_graphs

whole_seconds = st.integers(0, 5).map(float)


@st.composite
def timelines(draw):
    """Whole numbers of seconds, so that sums are exact; at least one of them is not zero."""
    graph = draw(st.one_of(graphs(), order_graphs()))
    backward = 2 * draw(whole_seconds)
    others = {name: draw(whole_seconds) for name in ("transfer", "gather", "reduce", "optimizer")}
    costs = AbstractCosts(forward=1 + draw(whole_seconds), backward=backward, **others)
    return simulate(graph, costs.costs(graph))


properties = settings(derandomize=True, deadline=None, max_examples=100)


@properties
@given(timelines())
def test_causes_sum_to_the_idle_time(timeline):
    causes = Causes(timeline)
    for wait in causes.waits:
        assert wait.end > wait.begin
        assert sum(wait.seconds.values()) == wait.end - wait.begin
        assert min(wait.seconds.values()) > 0
        assert Cause.DISPATCH not in wait.seconds
    for metrics in rank_metrics(timeline):
        idle = causes.idle[metrics.rank]
        assert list(idle) == list(Cause)
        assert sum(idle.values()) == metrics.idle == timeline.step_time - metrics.compute_time


@properties
@given(timelines())
def test_the_critical_path_is_one_chain_from_begin_to_end(timeline):
    path = Causes(timeline).critical_path
    assert timeline.start[path[0]] == 0
    assert timeline.end[path[-1]] == timeline.step_time
    assert (timeline.end[path[:-1]] == timeline.start[path[1:]]).all()
    assert timeline.duration[path].sum() == timeline.step_time
    assert path == sorted(path)


@properties
@given(timelines())
def test_a_task_starts_when_its_blocker_ends(timeline):
    graph, blocker = timeline.graph, Causes(timeline).blocker
    waits = blocker != NONE
    assert (timeline.end[blocker[waits]] == timeline.start[waits]).all()
    assert (timeline.start[~waits] == 0).all()
    for number in np.flatnonzero(waits).tolist():
        task, before = graph.task(number), graph.task(int(blocker[number]))
        lanes = {before.lane, before.peer_lane} - {NONE}
        assert before.number in task.dependencies or lanes & {task.lane, task.peer_lane}


def example(sharding=Sharding.NONE, **costs):
    """One micro-batch forward and backward over two ranks, a stage each."""
    graph = build_graph("gpipe", Layout(2, 1), Communication(sharding))
    return simulate(graph, AbstractCosts(**costs).costs(graph))


def found(timeline, rank):
    """The causes that are there at all."""
    return {cause: each for cause, each in Causes(timeline).idle[rank].items() if each}


def test_an_example_by_hand():
    """Rank 0 runs in 0-1 and 5-7, rank 1 in 1.5-4.5; rank 0 then reduces and updates to 8.25."""
    timeline = example(transfer=0.5, reduce=1, optimizer=0.25)
    assert timeline.step_time == 8.25
    assert found(timeline, 0) == {
        Cause.TRANSFER: 0.5 + 0.5,
        Cause.OTHER_RANK: 1 + 2,
        Cause.REDUCTION: 1,
        Cause.OPTIMIZER: 0.25,
    }
    assert found(timeline, 1) == {
        Cause.WARM_UP: 1,
        Cause.TRANSFER: 0.5 + 0.5,
        Cause.DRAIN: 2,
        Cause.REDUCTION: 1,
        Cause.OPTIMIZER: 0.25,
    }
    causes = Causes(timeline)
    operations = [OPERATIONS[timeline.graph.operation[task]] for task in causes.critical_path]
    assert operations == [
        Operation.FORWARD,
        Operation.TRANSFER_ACTIVATIONS,
        Operation.FORWARD,
        Operation.BACKWARD,
        Operation.TRANSFER_GRADIENTS,
        Operation.BACKWARD,
        Operation.REDUCE,
        Operation.OPTIMIZER,
    ]
    stretches = [(wait.rank, wait.begin, wait.end) for wait in causes.waits]
    assert stretches == [(0, 1, 5), (0, 7, 8.25), (1, 0, 1.5), (1, 4.5, 8.25)]
    assert causes.waits[1].task == NONE


def test_a_gather_that_nothing_hides():
    timeline = example(Sharding.FULL, gather=3)
    assert found(timeline, 0)[Cause.GATHER] >= 3
    assert found(timeline, 1)[Cause.GATHER] >= 3


def test_what_a_slow_stage_takes_longer_than_the_mean_is_imbalance():
    """Stage 1 takes 2 and 4 seconds where the means are 1.5 and 3."""
    graph = example().graph
    costs = Scaled(AbstractCosts(), "stage.1", 2).costs(graph)
    idle = found(simulate(graph, costs), 0)
    assert idle == pytest.approx({Cause.IMBALANCE: 0.5 + 1, Cause.OTHER_RANK: 1.5 + 3})


def test_a_reduction_in_the_way_of_compute_is_exposed():
    """Without overlap, reductions of 4 seconds take their turn between the backward passes."""
    graph = build_graph("breadth-first", Layout(1, 1, 3), Communication(dp_overlap=False))
    timeline = simulate(graph, AbstractCosts(reduce=4).costs(graph))
    assert found(timeline, 0) == {Cause.REDUCTION: 3 * 4}


def test_a_buffer_that_is_freed_late():
    """As in measurements: the weights are there, and the pass still waits for a reduction."""
    graph = build_graph("breadth-first", Layout(1, 1, 3), Communication(Sharding.FULL))
    prompt = simulate(graph, AbstractCosts(reduce=4).costs(graph))
    reduction = next(
        before
        for wait in Causes(prompt).waits
        for before in graph.dependencies.of(wait.task)
        if graph.operation[before] == Operation.REDUCE
    )
    early = prompt.end.copy()
    gathers = (graph.operation == Operation.GATHER) & (early == prompt.end[reduction])
    early[gathers] = prompt.start[reduction]
    start = np.minimum(prompt.start, early)
    idle = found(Timeline(graph, start, early, "measured"), 0)
    assert idle[Cause.BUFFER] == 4 - 2


def test_a_late_start_without_a_reason_is_told():
    """As in measurements: nobody was in the way of a task that started late."""
    prompt = example()
    late = Timeline(prompt.graph, prompt.start.copy(), prompt.end.copy(), "measured")
    forward = late.graph.rank == 1
    forward &= late.graph.operation == Operation.FORWARD
    after = late.start >= late.start[forward][0]
    late.start[after] += 2
    late.end[after] += 2
    assert found(late, 1)[Cause.DISPATCH] == 2
    assert found(late, 1)[Cause.WARM_UP] == 1

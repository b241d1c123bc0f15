"""Tied embeddings in the task graph: who adds up their gradients, when, and what that costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import bfpp
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Operation,
    Sharding,
    Task,
    TaskGraph,
    build_graph,
    find_schedule,
    lower,
    registered_schedules,
)
from bfpp.schedules.columns import NONE
from bfpp.schedules.operations.streams import TIED
from bfpp.schedules.orders.steps import STEP, backward, forward
from bfpp.schedules.validity import violations
from bfpp.sim.cluster.group_location import GroupPlace
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.communication.collectives import collective_seconds
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.operators.operators import Collective, Way
from bfpp.traces.explain.causes import Causes
from bfpp.traces.explain.looks import Cause
from bfpp.traces.timeline.metrics import rank_metrics
from tests.helpers.mutations import find, waiting_less, without
from tests.helpers.strategies import some_configuration

GPT = Experiment(
    "1f1b",
    pp=4,
    microbatches=8,
    dp=2,
    model="gpt-3.6b",
    cluster="dgx1-v100",
    tied_embeddings=True,
)


def tied(schedule: str, layout: Layout, **more: object) -> TaskGraph:
    communication = Communication(tied_embeddings=True, **more)  # type: ignore[arg-type]
    return build_graph(schedule, layout, communication)


def the_task(graph: TaskGraph) -> Task:
    (task,) = find(graph, Operation.TIED_ALL_REDUCE)
    return task


@pytest.mark.parametrize("sharding", Sharding)
@pytest.mark.parametrize("name", registered_schedules())
def test_both_ends_add_up_once_all_is_reduced(name: str, sharding: Sharding) -> None:
    """And whatever uses the gradients of a rank that has an end waits for it."""
    communication = Communication(sharding, clipping=True, tied_embeddings=True)
    graph = some_configuration(find_schedule(name), 2, communication).graph()
    assert violations(graph) == []
    task, layout = the_task(graph), graph.layout
    assert task.ranks == layout.ends
    assert graph.lanes[task.lane].stream is TIED
    reduced = [
        max(each.number for each in find(graph, Operation.REDUCE, unit=unit))
        for unit in (0, layout.units - 1)
    ]
    assert set(task.dependencies) == {*reduced}
    for norm in find(graph, Operation.NORM):
        assert (task.number in norm.dependencies) == (norm.rank in task.ranks)


def test_one_rank_that_has_both_ends_adds_up_alone() -> None:
    vee = find_schedule("zb-v")
    task = the_task(tied("zb-v", vee.layout(4, 8)))
    assert (task.rank, task.peer, task.peer_lane) == (0, NONE, NONE)


def test_a_single_unit_has_nothing_to_add() -> None:
    graph = tied("gpipe", Layout(1, 2))
    assert not find(graph, Operation.TIED_ALL_REDUCE)
    assert violations(graph) == []


def test_copies_on_four_ranks_are_refused() -> None:
    layout = Layout(4, 2, placement=(0, 1), copies=[(2, 3)])
    steps = [(0, 0, 0), (2, 0, 1), (1, 1, 0), (3, 1, 1)]
    orders = [[]] * 4
    for rank, stage, microbatch in steps:
        passes = [forward(stage, microbatch), backward(stage, microbatch)]
        orders[rank] = np.array(passes, dtype=STEP)
    with pytest.raises(InvalidConfiguration, match="tied_embeddings: the copies of the first and"):
        lower(orders, layout, Communication(tied_embeddings=True))
    plain = lower(orders, layout, Communication())
    graph = tied("gpipe", Layout(2, 2))
    messages = [each.message for each in violations(replace(graph, layout=layout))]
    assert any("last, on rank 0 and 1 and 2 and 3" in message for message in messages)
    assert violations(plain) == []


def test_a_sum_that_is_early_missing_or_not_waited_for_is_found() -> None:
    graph = tied("1f1b", Layout(2, 2), clipping=True)
    task = the_task(graph)
    for dependency in task.dependencies:
        (found,) = violations(waiting_less(graph, task.number, dependency))
        assert found.rule == "tied"
    (found,) = violations(without(graph, task.number, bridged=True))
    assert (found.rule, found.message) == ("tied", "there are 0 tasks tied all-reduce, not 1")
    for norm in find(graph, Operation.NORM):
        found = violations(waiting_less(graph, norm.number, task.number))[0]
        assert found.rule == "optimizer"


def test_it_is_drawn_and_explained() -> None:
    """Nothing else is left to do by then."""
    graph = tied("1f1b", Layout(3, 3))
    costs = AbstractCosts(optimizer=1, tied_all_reduce=5)
    timeline = simulate(graph, costs)
    plain = simulate(graph, replace(costs, tied_all_reduce=0))
    assert timeline.step_time == plain.step_time + 5
    assert rank_metrics(timeline)[0].exposed_data == 5
    idle = Causes(timeline).idle
    assert idle[0][Cause.TIED] == 5


def test_its_price_is_that_of_two_devices_gradients() -> None:
    """Of two nodes; of a share where the embedding is sharded."""
    far = GPT.changed(tp=8, dp=1)
    graph, physical = far.graph(), far.require_physical()
    costs, task = physical.costs(graph), the_task(graph)
    words = physical.model.word_parameters(8)
    gradients = physical.parameter_bytes(Sharding.NONE).gradients
    summed = Collective(Way.ALL_REDUCE, words * gradients)
    expected = collective_seconds(summed, GroupPlace(2, (2, 1), (1, 2)), physical.cluster)
    assert costs.seconds_alone()[task.number] == pytest.approx(expected)
    current = GPT.changed(implementation="current", cluster="dgx-a100", dp=8)
    whole, share = (
        each.require_physical().costs(each.graph()).seconds_alone()[the_task(each.graph()).number]
        for each in (current, current.changed(sharding="partial"))
    )
    assert share < whole / 4


def test_ends_on_one_rank_exchange_nothing() -> None:
    vee = GPT.changed(schedule="zb-v")
    graph = vee.graph()
    assert vee.require_physical().costs(graph).seconds_alone()[the_task(graph).number] == 0


def test_a_prediction_with_it_takes_longer_and_no_other_task_changes() -> None:
    plain = GPT.changed(tied_embeddings=False)
    graph, other = GPT.graph(), plain.graph()
    kept = graph.operation != Operation.TIED_ALL_REDUCE
    found, expected = (
        each.require_physical().costs(each.graph()).seconds_alone() for each in (GPT, plain)
    )
    assert len(other) == kept.sum()
    assert np.array_equal(np.sort(found[kept]), np.sort(expected))
    assert bfpp.predict(GPT).timeline.step_time > bfpp.predict(plain).timeline.step_time


def test_an_output_layer_of_its_own_is_tied_to_nothing() -> None:
    experiment = GPT.changed(model="llama3-8b", dp=1, cluster="dgx-h100")
    with pytest.raises(InvalidConfiguration, match="llama3-8b's output layer has weights of its"):
        experiment.require_physical().costs(experiment.graph())

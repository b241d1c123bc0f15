"""Copies of stages: Chimera's published numbers, and what cannot be copied."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.executor.plan.plan import Plan
from bfpp.schedules import (
    Communication,
    Degrees,
    InvalidConfiguration,
    Layout,
    Operation,
    Per,
    Sharding,
    TaskGraph,
    build_graph,
    find_schedule,
    lower,
)
from bfpp.schedules.formats.graph_json import read_graph, write_graph
from bfpp.schedules.graph.counts import data_network, peak_microbatches, weight_buffers
from bfpp.schedules.orders.steps import STEP, backward, forward
from bfpp.schedules.validity import violations
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines.engines import simulate
from bfpp.sim.models.model import load_model
from bfpp.sim.search.enumeration import configurations
from bfpp.sim.search.problem import Problem
from bfpp.traces.timeline.metrics import bubble
from tests.helpers.mutations import changed, find
from tests.helpers.small_models import chain
from tests.helpers.training_runs import same, training

deterministic = settings(derandomize=True, deadline=None, max_examples=40)


def chimera(pp: int, microbatches: int, **communication: object) -> TaskGraph:
    schedule = find_schedule("chimera")
    told = Communication(**communication)  # type: ignore[arg-type]
    return build_graph(schedule, schedule.layout(pp, microbatches), told)


@deterministic
@given(st.sampled_from([2, 4, 6, 8, 16]), st.integers(1, 3), st.integers(0, 5))
def test_chimera_takes_its_closed_form(pp: int, forward: int, more: int) -> None:
    """N (F + B) + (D - 2) B at N = D, where a backward pass takes no less than a forward one."""
    backward = forward + more
    graph = chimera(pp, pp)
    time = simulate(graph, AbstractCosts(forward=forward, backward=backward)).step_time
    assert time == pp * (forward + backward) + (pp - 2) * backward


@pytest.mark.parametrize("groups", [1, 2, 5])
@pytest.mark.parametrize("pp", [2, 4, 8])
def test_groups_of_chimera_fit_together_where_passes_take_equally_long(
    pp: int, groups: int
) -> None:
    """The bubble is (D - 2) / (2 N + D - 2) of the step; 1 / N_Ch of 1F1B's but for one slot."""
    timeline = simulate(chimera(pp, groups * pp), AbstractCosts(forward=1, backward=1))
    assert timeline.step_time == 2 * groups * pp + pp - 2
    assert bubble(timeline) == pytest.approx((pp - 2) / (2 * groups * pp))


@pytest.mark.parametrize("groups", [1, 2, 5])
@pytest.mark.parametrize("pp", [2, 4, 6])
def test_slots_of_equal_passes_keep_chimeras_bubble_from_growing(pp: int, groups: int) -> None:
    """(D - 2) B at most, however many groups follow one another, where B = 2 F.

    Forward doubling is for twice as many micro-batches, and takes twice the activations. With
    backward halving a slot is half as long, and so is the bubble.
    """
    halving, doubling = {"backward_halving": True}, {"forward_doubling": True}
    for own, count, share in ((doubling, 2 * groups * pp, 1.0), (halving, groups * pp, 0.5)):
        schedule = find_schedule("chimera", **own)
        timeline = simulate(build_graph(schedule, schedule.layout(pp, count)), AbstractCosts(1, 2))
        assert timeline.step_time <= 3 * count + share * (pp - 2) * 2
        assert peak_microbatches(timeline.graph).max() == 2 * pp * share
        assert violations(timeline.graph) == []


def test_what_chimera_cannot_pair_is_refused() -> None:
    schedule = find_schedule("chimera", forward_doubling=True)
    for count in (2, 9):
        with pytest.raises(
            InvalidConfiguration, match=f"forward doubling takes pairs, .* {count} "
        ):
            schedule.require(schedule.layout(2, count))
    with pytest.raises(InvalidConfiguration, match="excludes forward doubling"):
        find_schedule("chimera", forward_doubling=True, backward_halving=True)


@pytest.mark.parametrize("pp", [2, 4, 8, 16])
def test_what_ranks_of_chimera_hold(pp: int) -> None:
    """Two stages each, and from D / 2 + 1 to D micro-batches."""
    graph = chimera(pp, 2 * pp)
    peak = peak_microbatches(graph)
    assert (peak.min(), peak.max()) == (pp / 2 + 1, pp)
    assert weight_buffers(graph).tolist() == [2] * pp
    assert data_network(graph).tolist() == [2 * 2 / pp] * pp


def test_a_gather_and_a_reduction_are_of_both_copies() -> None:
    graph = chimera(4, 4, sharding=Sharding.PARTIAL)
    for operation in (Operation.GATHER, Operation.REDUCE):
        tasks = find(graph, operation)
        ends = sorted((task.unit, task.rank, task.peer) for task in tasks)
        assert ends == [(unit, unit, 3 - unit) for unit in range(4)]
        assert {graph.lanes[task.peer_lane].title for task in tasks} == {"data"}
    assert str(find(graph, Operation.REDUCE, unit=1)[0]).endswith("of stage 1 on ranks 1 and 2")


def test_a_file_holds_copies() -> None:
    graph = chimera(4, 4)
    assert read_graph(write_graph(graph)).digest == graph.digest


# What the checker says


def rules(graph: TaskGraph) -> set[str]:
    return {violation.rule for violation in violations(graph)}


def test_a_backward_pass_at_the_other_copy_is_refused() -> None:
    graph = chimera(2, 2)
    step = find(graph, Operation.BACKWARD, unit=0, microbatch=0)[0]
    (lane,) = (
        n for n, lane in enumerate(graph.lanes) if lane.rank == 1 and n == graph.lanes_of(1)[0]
    )
    moved = changed(graph, step.number, rank=1, lane=lane)
    assert "placement" in rules(moved)


def test_a_reduction_of_one_copy_alone_is_refused() -> None:
    graph = chimera(2, 2)
    reduction = find(graph, Operation.REDUCE)[0]
    alone = changed(graph, reduction.number, peer=-1, peer_lane=-1)
    assert {"placement", "lanes", "gradients"} <= rules(alone)


# What is refused


@pytest.mark.parametrize(
    ("copies", "reason"),
    [
        ([(1,)], "copies: there are 2 stages, not 1"),
        ([(0, 1)], "copies: rank 0 holds both copies of stage 0"),
        ([(1, 0), (1, 0)], "copies: a stage has two copies at most, not 3"),
        ([(1, 2)], "placement: there is no rank 2"),
    ],
)
def test_copies_that_cannot_be_are_refused(copies: list[tuple[int, ...]], reason: str) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        Layout(2, 2, copies=copies)
    assert str(refused.value) == reason


def test_ranks_that_share_some_stages_share_all() -> None:
    with pytest.raises(InvalidConfiguration, match="copies: ranks 0 and 1 share some of their"):
        Layout(4, 2, copies=[(1, 2, 3, 0)])


ORDERS = {
    "schedule: ranks 0 and 1 both run stage 0, micro-batch 0": [
        [forward(0, 0), forward(0, 1), backward(0, 1)],
        [forward(1, 0), backward(1, 0), backward(0, 0), forward(1, 1), backward(1, 1)],
    ],
    "schedule: rank 0 runs no micro-batch of its copy of stage 1": [
        [forward(0, 0), backward(0, 0)],
        [
            forward(0, 1),
            forward(1, 0),
            backward(1, 0),
            forward(1, 1),
            backward(1, 1),
            backward(0, 1),
        ],
    ],
}


@pytest.mark.parametrize("reason", ORDERS)
def test_orders_that_mix_up_copies_are_refused(reason: str) -> None:
    orders = [np.array(steps, dtype=STEP) for steps in ORDERS[reason]]
    with pytest.raises(InvalidConfiguration) as refused:
        lower(orders, Layout(2, 2, copies=[(1, 0)]), Communication())
    assert str(refused.value) == reason


@pytest.mark.parametrize(
    ("pp", "microbatches", "reason"),
    [
        (3, 6, "pp: chimera needs an even number of ranks, not 3"),
        (2, 1, "microbatches: chimera needs at least two: one in each direction"),
    ],
)
def test_what_chimera_cannot_do_is_refused(pp: int, microbatches: int, reason: str) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        chimera(pp, microbatches)
    assert str(refused.value) == reason


# Full sharding


@pytest.mark.parametrize("name", ["chimera", "dualpipe"])
def test_runs_of_both_copies_are_gathered_and_reduced_together(name: str) -> None:
    """By one task on the lanes of both, in buffers of the same number."""
    schedule = find_schedule(name)
    graph = build_graph(schedule, schedule.layout(4, 8), Communication(Sharding.FULL))
    assert violations(graph) == []
    for operation in (Operation.GATHER, Operation.REDUCE):
        for task in find(graph, operation):
            assert {task.rank, task.peer} == {task.unit, 3 - task.unit}
    assert weight_buffers(graph).max() <= 4


def test_what_one_copy_runs_alone_is_gathered_and_reduced_with_the_other() -> None:
    """An odd number of micro-batches: those of one direction are one more."""
    graph = chimera(2, 3, sharding=Sharding.FULL)
    assert violations(graph) == []
    reductions = find(graph, Operation.REDUCE)
    assert len(reductions) > len({task.unit for task in reductions})
    assert all(task.peer == 1 - task.rank for task in reductions)


def test_copies_that_are_used_too_far_apart_are_gathered_and_reduced_once_a_step() -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        chimera(6, 5, sharding=Sharding.FULL)
    assert str(refused.value) == (
        "weight_buffers: the copies of stage 4 are used too far apart for 2, "
        "unless gathered once a step"
    )
    with pytest.raises(InvalidConfiguration, match="reduce_per: the copies of stage 1 are used"):
        chimera(6, 5, sharding=Sharding.FULL, gather_per=Per.STEP)
    graph = chimera(6, 5, sharding=Sharding.FULL, gather_per=Per.STEP, reduce_per=Per.STEP)
    assert violations(graph) == []
    assert len(find(graph, Operation.GATHER)) == len(find(graph, Operation.REDUCE)) == 6


# What it costs


def reduction_seconds(graph: TaskGraph, dp: int) -> npt.NDArray[np.float64]:
    degrees = Degrees(pp=4, dp=dp, tp=2)
    physical = PhysicalCosts(load_model("bert-6.6b"), load_cluster("dgx1-v100"), degrees)
    seconds = physical.costs(graph).seconds_alone()
    return seconds[graph.operation == Operation.REDUCE]


def test_gradients_are_reduced_over_copies_and_replicas() -> None:
    """Without replicas, two copies of a stage still have something to tell each other."""
    alone = build_graph("1f1b", Layout(4, 8), Communication())
    assert (reduction_seconds(alone, 1) == 0).all()
    assert (reduction_seconds(chimera(4, 8), 1) > 0).all()
    assert (reduction_seconds(chimera(4, 8), 2) > reduction_seconds(chimera(4, 8), 1)).all()


# What a checkpoint holds


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("sharding", Sharding)
def test_a_checkpoint_holds_a_parameter_of_two_copies_once(
    sharding: Sharding, tmp_path: Path
) -> None:
    """All copies agree on it, and a pipeline without copies goes on from it."""
    with training(Plan(chimera(4, 4, sharding=sharding), chain(4), dp=2)) as copied:
        copied.run(range(2))
        path, saved = copied.save(tmp_path, 2), copied.values()
    alone = build_graph("1f1b", Layout(2, 4, units_per_stage=2), Communication())
    with training(Plan(alone, chain(4))) as loaded:
        loaded.load(path)
        assert same(loaded.values(), saved)
    with training(Plan(chimera(4, 4, sharding=sharding), chain(4), dp=2)) as again:
        again.load(path)
        assert same(again.values(), saved)


def test_the_search_leaves_out_what_copies_cannot_do() -> None:
    """Odd numbers of ranks, and single micro-batches."""
    model, cluster = load_model("bert-6.6b"), load_cluster("dgx1-v100")
    found = configurations(Problem(model, cluster, (8,), (4,), ("chimera",)))
    assert found
    for configuration in found:
        assert configuration.degrees.pp % 2 == 0
        assert configuration.microbatches > 1

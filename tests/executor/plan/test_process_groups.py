"""Groups are made in rounds that all agree on, and their kernels leave room for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from random import Random

import pytest

from bfpp.executor.plan.plan import Plan
from bfpp.executor.plan.process_groups import (
    ALL_CHANNELS_CTAS,
    Purpose,
    channel_ctas,
    channel_rounds,
    channels_of,
    memberships,
    require_co_resident,
    spinning,
)
from bfpp.schedules import (
    P2P,
    Communication,
    InvalidConfiguration,
    Sharding,
    build_graph,
    find_schedule,
    registered_schedules,
)
from tests.helpers.multiprocessors import comes_to_an_end, ends_one_by_one, parts_of
from tests.helpers.small_models import chain, tied_chain
from tests.helpers.strategies import some_configuration
from tests.helpers.training_runs import plan_of

H100 = 132


def plans(replicas: int = 2, tp: int = 1, p2p: P2P = P2P.CHANNELS) -> Iterator[Plan]:
    """A plan of each schedule, sharded and not, hybrid, with tied ends and a clipped norm."""
    for name, (sharding, hybrid, tied) in product(
        registered_schedules(),
        [(Sharding.NONE, False, True), (Sharding.FULL, False, False), (Sharding.FULL, True, True)],
    ):
        communication = Communication(
            sharding, hybrid=hybrid, tied_embeddings=tied, clipping=True, p2p=p2p
        )
        try:
            graph = some_configuration(find_schedule(name), 4, communication).graph()
        except InvalidConfiguration:
            continue
        units = graph.layout.units
        model = tied_chain(units) if tied else chain(units)
        if graph.layout.slices == 1:
            yield plan_of(graph, model, replicas, tp=tp)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("p2p", [P2P.CHANNELS, P2P.BATCHED])
def test_all_processes_make_the_same_groups_in_the_same_rounds(tp: int, p2p: P2P) -> None:
    for plan in plans(tp=tp, p2p=p2p):
        pp = plan.graph.layout.pp
        rounds = [
            memberships(plan, rank, pipeline)
            for rank, pipeline in product(range(pp), range(plan.pipelines))
        ]
        for groups in zip(*rounds, strict=True):  # as many on every process
            for process, group in enumerate(groups):
                if group is not None:
                    assert process in group.members
                    assert all(groups[member] == group for member in group.members)


def test_a_round_has_no_two_channels_with_an_end_in_common() -> None:
    for plan in plans():
        rounds, channels = channel_rounds(plan.graph), channels_of(plan.graph)
        assert sorted(channel for each in rounds for channel in each) == channels
        degree = Counter(rank for _, *ends in channels for rank in ends)
        for each in rounds:
            ends = [rank for _, *both in each for rank in both]
            assert len(ends) == len({*ends})
        assert len(rounds) <= 2 * max(degree.values()) - 1  # as of any such colouring
        assert max(degree.values()) * channel_ctas(plan.graph) <= ALL_CHANNELS_CTAS


def test_the_bound_of_a_step_that_was_counted_by_hand() -> None:
    schedule = find_schedule("1f1b")
    communication = Communication(Sharding.FULL, clipping=True)
    plan = plan_of(build_graph(schedule, schedule.layout(4, 8), communication), replicas=2)
    kernels = {each.lane: each.group.max_ctas for each in spinning(plan, 1, 0)}
    # In the middle of a pipeline: two channels to each neighbour, gathers and reductions, the norm.
    assert kernels == {
        "compute": 4,
        "data": 16,
        "send activations to 2": 8,
        "receive activations from 0": 8,
        "send gradients to 0": 8,
        "receive gradients from 2": 8,
    }
    require_co_resident(plan, 53, "it")
    with pytest.raises(InvalidConfiguration, match=r"may take 52 multiprocessors of rank 1 .* 52"):
        require_co_resident(plan, 52, "it")


def test_a_batch_is_one_kernel_that_waits_for_the_one_before() -> None:
    schedule = find_schedule("1f1b")
    communication = Communication(Sharding.FULL, clipping=True, p2p=P2P.BATCHED)
    plan = plan_of(build_graph(schedule, schedule.layout(4, 8), communication), replicas=2)
    kernels = {each.lane: each.group.max_ctas for each in spinning(plan, 1, 0)}
    assert kernels == {"compute": 4, "data": 16, "batches of transfers": 32}
    groups = [each for each in memberships(plan, 1, 0) if each]
    assert [each.members for each in groups if each.purpose is Purpose.TRANSFERS] == [(0, 2, 4, 6)]
    assert not any(each.channel for each in groups)


def test_groups_of_one_process_wait_for_nobody() -> None:
    for plan in plans(replicas=1):
        if not plan.graph.communication.hybrid and not plan.graph.layout.copies:
            groups = {each.group.purpose for each in spinning(plan, 0, 0)}
            assert groups <= {Purpose.CHANNEL, Purpose.PIPELINE, Purpose.TIED}


@pytest.mark.parametrize("p2p", [P2P.CHANNELS, P2P.BATCHED, P2P.COALESCED])
def test_what_fits_by_the_bound_comes_to_an_end_and_too_small_a_gpu_may_not(p2p: P2P) -> None:
    """In every order of a model of the GPUs; on as many multiprocessors as the bound, and one."""
    stuck = 0
    for number, plan in enumerate(plans(p2p=p2p)):
        pp = plan.graph.layout.pp
        most = max(sum(each.group.max_ctas for each in spinning(plan, r, 0)) for r in range(pp))
        assert most < H100
        parts, processes = parts_of(plan), pp * plan.pipelines
        chance = Random(number)
        assert comes_to_an_end(parts, processes, most + 1, chance), plan.graph
        stuck += not comes_to_an_end(parts, processes, most // 2, chance)
    assert stuck > 0


def test_as_one_chain_nothing_need_run_side_by_side_and_else_it_must() -> None:
    """As in a CUDA graph, of whose branches nobody knows which run at the same time."""
    stuck = 0
    for number, plan in enumerate(plans()):
        parts, processes = parts_of(plan), plan.graph.layout.pp * plan.pipelines
        chance = Random(number)
        assert ends_one_by_one(parts, processes, chance, chained=True), plan.graph
        stuck += not ends_one_by_one(parts, processes, chance, chained=False)
    assert stuck > 0

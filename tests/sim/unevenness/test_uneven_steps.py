"""Steps of replicas that differ: alike ones are one, even ones as before, and sources' parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.schedules import (
    Communication,
    Degrees,
    InvalidConfiguration,
    Layout,
    Operation,
    Sharding,
    build_graph,
)
from bfpp.schedules.replicas.joint_graph import joined
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.module_shares import module_shares
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines.engines import simulate, simulate_joint
from bfpp.sim.models.model import load_model
from bfpp.sim.unevenness.counted_numbers import counted
from bfpp.sim.unevenness.factors_file import read_factors
from bfpp.sim.unevenness.replicated_step import NOTHING, Effect, ReplicatedStep
from bfpp.sim.unevenness.routing_file import routing_loads
from bfpp.sim.unevenness.sources import PassJitter, Pauses, SlowDevices, SlowLinks
from bfpp.sim.unevenness.uneven_costs import uneven_costs
from bfpp.sim.unevenness.uneven_steps import uneven_steps
from bfpp.sim.unevenness.work import DocumentLengths, ExpertRouting, SampleImages
from tests.helpers.strategies import compared

COSTS = AbstractCosts(
    transfer=0.25, reduce=0.5, gather=0.25, optimizer=0.1, all_reduce=0.25, norm=0.1
)
PHYSICAL = PhysicalCosts(
    load_model("bert-6.6b"), load_cluster("dgx1-v100"), Degrees(dp=4, tp=2), microbatch_size=2
)


def step_of(replicas=4, pp=4, microbatches=8, **degrees) -> ReplicatedStep:
    hybrid = degrees.get("dp_replicate", 1) > 1
    sharding = Sharding.PARTIAL if hybrid else Sharding.NONE
    communication = Communication(sharding, hybrid=hybrid, clipping=True)
    graph = build_graph("1f1b", Layout(pp, microbatches), communication)
    return ReplicatedStep(graph, COSTS.costs(graph), Degrees(pp=pp, dp=replicas, **degrees))


def physical_step() -> ReplicatedStep:
    graph = build_graph("1f1b", Layout(4, 8))
    return ReplicatedStep(graph, PHYSICAL.costs(graph), PHYSICAL.degrees, 2, PHYSICAL)


EVEN = simulate(step_of().graph, COSTS).step_time


# Alike replicas


@compared(40)
@given(st.sampled_from([(4, 1), (6, 1), (4, 2), (6, 3), (8, 2)]), st.integers(0, 2**32 - 1))
def test_replicas_that_are_alike_run_as_one(grid, seed):
    replicas, groups = grid
    step, random = step_of(replicas, 2, 3, dp_replicate=groups), np.random.default_rng(seed)
    kinds = random.integers(0, 2, replicas)
    factor = random.integers(1, 4, (2, len(step.graph))).astype(float)[kinds]
    costs = uneven_costs(step, [Effect(factor, NOTHING.added)])
    folded = simulate_joint(
        joined([step.graph] * len(costs.replicas), costs.groups), costs.replicas
    )
    every = [costs.replicas[each] for each in costs.of_replica]
    whole = simulate_joint(joined([step.graph] * replicas, groups), every)
    assert folded.step_time == whole.step_time
    for replica, place in enumerate(costs.of_replica):
        np.testing.assert_array_equal(folded.of(place).end, whole.of(replica).end)
    assert len(costs.replicas) <= replicas


def test_even_replicas_are_one_and_today_s_step():
    costs = uneven_costs(step_of(), [])
    assert (len(costs.replicas), costs.groups, costs.of_replica.tolist()) == (1, 1, [0] * 4)
    steps = uneven_steps(step_of(), [SlowDevices.parse("rank=3:1")], 8)
    assert steps.seconds.tolist() == steps.even.tolist() == [EVEN]
    assert steps.typical.graph.digest == step_of().graph.digest
    assert (steps.slowdown, steps.parts[0].share) == (1.0, None)


def test_one_slow_device_of_many_makes_two_replicas():
    steps = uneven_steps(step_of(64), [SlowDevices.parse("rank=3,replica=5:1.5")], 8)
    assert len(steps.typical.graph.replicas) == 2
    assert np.flatnonzero(steps.of_replica == steps.slowest).tolist() == [5]


def test_collectives_are_as_slow_as_the_slowest_member():
    step = step_of(4, dp_replicate=2)
    reductions = step.graph.operation == Operation.REDUCE
    across = step.graph.operation == Operation.ALL_REDUCE
    factor = np.ones(step.shape)
    factor[0] = 3.0
    costs = uneven_costs(step, [Effect(factor, NOTHING.added)])
    by_replica = [costs.replicas[each].seconds for each in costs.of_replica]
    assert [each[reductions].max() for each in by_replica] == [1.5, 1.5, 0.5, 0.5]
    assert [each[across].max() for each in by_replica] == [0.75, 0.25, 0.75, 0.25]


def test_replicas_that_exchange_tokens_run_as_one():
    step = step_of(8, ep=4)
    steps = uneven_steps(step, [SlowDevices.parse("replica=5:1.5")], 1)
    assert steps.of_replica.tolist() == [0] * 4 + [1] * 4


# Sources


def seconds(step, source, seed=0):
    effect = source.effect(step, np.random.default_rng(seed))
    return np.broadcast_to(step.costs.seconds * effect.factor + effect.added, step.shape)


def test_slow_devices_compute_longer_and_nothing_else():
    step = step_of()
    slow = seconds(step, SlowDevices.parse("rank=3,replica=1:2 stage=0:3"))
    ratio = np.divide(slow, step.costs.seconds, out=np.ones_like(slow), where=slow > 0)
    graph = step.graph
    assert set(ratio[1, graph.is_compute & (graph.rank == 3)]) == {2.0}
    assert set(ratio[:, graph.is_compute & (graph.stage == 0)].ravel()) == {3.0}
    assert set(ratio[0, graph.is_compute & (graph.stage != 0)]) == {1.0}
    assert set(ratio[:, step.is_transfer | step.is_collective].ravel()) == {1.0}
    assert set(ratio[1, graph.operation == Operation.OPTIMIZER]) == {1.0, 2.0}


def test_nodes_are_those_of_the_placement():
    step = physical_step()  # 4 replicas of 4 ranks on 2 devices each, 8 on a node
    ratio = seconds(step, SlowDevices.parse("node=2:2")) / np.maximum(step.costs.seconds, 1e-30)
    slow = ratio[:, step.graph.is_compute]
    ranks = np.broadcast_to(step.graph.rank[step.graph.is_compute], slow.shape)
    assert set(ranks[np.isclose(slow, 2)].tolist()) == {2}
    assert np.isclose(slow[ranks == 2], 2).all()
    with pytest.raises(InvalidConfiguration, match="there is no node 4; the last is 3"):
        seconds(step, SlowDevices.parse("node=4:2"))
    with pytest.raises(InvalidConfiguration, match="needs --model"):
        seconds(step_of(), SlowDevices.parse("node=0:2"))


def test_slow_links_are_those_of_their_ranks():
    step = step_of()
    graph, slow = step.graph, seconds(step, SlowLinks.parse("link=2-1:3 rank=3,replica=2:2"))
    ratio = np.divide(slow, step.costs.seconds, out=np.ones_like(slow), where=slow > 0)
    between = step.is_transfer & (np.minimum(graph.rank, graph.peer) == 1) & (graph.rank != 3)
    between &= graph.peer != 3
    assert set(ratio[:, between].ravel()) == {3.0}
    assert set(ratio[2, step.is_collective & (graph.rank == 3)]) == {2.0}
    assert set(ratio[0, ~between]) == {1.0}
    with pytest.raises(InvalidConfiguration, match="there is no rank 9; the last is 3"):
        seconds(step, SlowLinks.parse("link=2-9:3"))


def test_jitter_has_its_mean_and_deviation():
    step = step_of(64)
    passes = seconds(step, PassJitter(0.1))[:, step.graph.is_compute]
    ratio = passes / step.costs.seconds[step.graph.is_compute]
    assert (ratio.mean(), ratio.std()) == (pytest.approx(1, abs=0.01), pytest.approx(0.1, abs=0.01))


def test_pauses_come_as_often_as_they_should_and_where():
    step = step_of(64)
    added = [
        seconds(step, Pauses.parse("gc:7/4@rank=2"), seed) - step.costs.seconds
        for seed in range(20)
    ]
    stopped = np.stack(added) > 1
    assert set(step.graph.rank[np.nonzero(stopped)[2]].tolist()) == {2}
    assert stopped.sum() / (20 * 64) == pytest.approx(0.25, abs=0.04)
    assert stopped.sum(axis=2).max() == 1


def test_full_documents_leave_a_step_as_it_is():
    step = physical_step()
    for packing in ("concatenate", "first-fit", "best-fit", "none"):
        source = DocumentLengths(counted("lengths", f"{PHYSICAL.model.sequence}:9"), packing)
        assert seconds(step, source)[0] == pytest.approx(step.costs.seconds)


def test_a_pass_grows_with_tokens_and_core_attention_with_squares():
    step = step_of(2)
    whole = DocumentLengths(counted("lengths", "100:1,300:1"), "none", None, 0.25)
    ratio = (seconds(step, whole) / step.costs.seconds)[:, step.graph.is_compute]
    third = 0.75 / 3 + 0.25 / 9
    assert {*np.round(ratio.ravel(), 12).tolist()} == {1.0, round(third, 12)}
    packed = DocumentLengths(counted("lengths", "100:3000"), "best-fit", 300, 0.25)
    ratio = (seconds(step, packed) / step.costs.seconds)[:, step.graph.is_compute]
    assert ratio == pytest.approx(0.75 + 0.25 / 3)
    assert (seconds(step, packed) == step.costs.seconds)[:, step.is_transfer].all()
    moved = seconds(step, whole)[:, step.is_transfer] / 0.25
    assert {*np.round(moved.ravel(), 12).tolist()} == {1.0, round(1 / 3, 12)}


def test_shares_of_core_attention_grow_with_the_sequence():
    layout = Layout(4, 8)
    long = replace(PHYSICAL, model=replace(PHYSICAL.model, sequence=8 * PHYSICAL.model.sequence))
    short_share, long_share = (
        module_shares(each, layout, {"core_attn"})[Operation.FORWARD] for each in (PHYSICAL, long)
    )
    assert (short_share > 0).all()
    assert (long_share > short_share).all()
    assert (long_share < 1).all()
    assert (module_shares(PHYSICAL, layout, {"moe"}) == 0).all()


def test_images_lengthen_the_first_stage():
    step = step_of()
    source = SampleImages(counted("images", "3"), 0.5)
    added = seconds(step, source) - step.costs.seconds
    graph = step.graph
    forward = (graph.operation == Operation.FORWARD) & (graph.unit == 0)
    backward = (graph.operation == Operation.BACKWARD) & (graph.unit == 0)
    assert added[:, forward] == pytest.approx(1.5)
    assert added[:, backward] == pytest.approx(3.0)
    assert added[:, ~(forward | backward)] == pytest.approx(0.0)


def test_experts_wait_for_the_busiest_device():
    step = step_of(2, ep=2)
    source = ExpertRouting(routing_loads("3,0,1,0"), 0.5)
    assert not source.is_random
    ratio = (seconds(step, source) / step.costs.seconds)[:, step.graph.is_compute]
    assert ratio == pytest.approx(1 + 0.5 * (3 / 2 - 1))
    with pytest.raises(InvalidConfiguration, match="has 3 experts, for --ep 2"):
        seconds(step, ExpertRouting(routing_loads("3,0,1"), 0.5))


def test_a_table_says_factors_or_seconds_of_tasks(tmp_path):
    path, step = tmp_path / "factors.csv", step_of()
    path.write_text("replica,rank,microbatch,operation,factor\n1,2,3,forward,4\n,0,,,2\n")
    ratio = seconds(step, read_factors(str(path))) / np.maximum(step.costs.seconds, 1e-30)
    graph, passes = step.graph, step.graph.is_compute
    one = (graph.operation == Operation.FORWARD) & (graph.rank == 2) & (graph.microbatch == 3)
    assert ratio[1, one].tolist() == [4.0]
    assert set(ratio[:, passes & (graph.rank == 0)].ravel()) == {2.0}
    assert set(ratio[0, passes & (graph.rank != 0)]) == {1.0}
    path.write_text("stage,seconds\n1,7.5\n")
    assert set(seconds(step, read_factors(str(path)))[:, passes & (graph.stage == 1)].ravel()) == {
        7.5
    }
    path.write_text("stage,seconds\n4,7.5\n")
    with pytest.raises(InvalidConfiguration, match="there is no stage 4 of 4"):
        seconds(step, read_factors(str(path)))


# Parts


def test_one_source_has_all_of_the_slowdown():
    steps = uneven_steps(step_of(), [SlowDevices.parse("rank=2:1.5")], 8)
    [part] = steps.parts
    assert (part.name, part.share) == ("slow", 1.0)
    assert part.slowdown == steps.slowdown == pytest.approx(steps.mean / EVEN)


def test_the_slower_of_two_sources_comes_first_and_has_the_larger_share():
    sources = [PassJitter(0.01), SlowDevices.parse("rank=2,replica=3:2")]
    steps = uneven_steps(step_of(), sources, 8)
    slow, jitter = steps.parts
    assert (slow.name, jitter.name) == ("slow", "jitter")
    assert slow.share > 0.9 > 0.1 > jitter.share
    assert steps.quantiles[0.05] <= steps.quantiles[0.5] <= steps.quantiles[0.95]
    again = uneven_steps(step_of(), sources, 8)
    assert again.seconds.tolist() == steps.seconds.tolist()
    assert uneven_steps(step_of(), sources, 8, seed=2).seconds.tolist() != steps.seconds.tolist()


def test_both_engines_sample_the_same_steps():
    sources = [PassJitter(0.1), Pauses.parse("gc:2/2")]
    fast, slow = (uneven_steps(step_of(2), sources, 2, 0, each) for each in ("compiled", "simpy"))
    assert fast.seconds.tolist() == slow.seconds.tolist()


def test_an_even_step_has_as_much_work():
    step = step_of(8)
    lengths = DocumentLengths(counted("lengths", "100:9,800:1"), "none", None, 0.3)
    effect = lengths.effect(step, np.random.default_rng(0))
    uneven, even = (uneven_costs(step, [each]) for each in (effect, lengths.even(step, effect)))
    work = [
        sum(costs.replicas[each].seconds[step.graph.is_compute].sum() for each in costs.of_replica)
        for costs in (uneven, even)
    ]
    assert work[0] == pytest.approx(work[1])
    assert len(even.replicas) == 1
    assert uneven_steps(step, [lengths], 4).slowdown > 1.2

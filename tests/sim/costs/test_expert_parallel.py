"""Experts and contexts over devices: groups and their places, states, memory, time, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp import Experiment
from bfpp.schedules import Degrees, InvalidConfiguration, Layout, Sharding
from bfpp.schedules.operations.row import Group
from bfpp.schedules.settings.attention import ContextExchange
from bfpp.schedules.settings.recomputation import parse_recomputation
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.group_location import GroupPlace
from bfpp.sim.cluster.placement import DevicePlacement
from bfpp.sim.cluster.software_profiles import CURRENT
from bfpp.sim.costs.communication.collectives import collective_seconds, crossing_share
from bfpp.sim.costs.physical import PhysicalCosts, rank_parameters
from bfpp.sim.costs.units.seconds import group_place, part_counts, parts, pass_seconds
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.uncertainty import not_modelled
from bfpp.sim.measurements.measured_tables import read_measurements
from bfpp.sim.measurements.published import table_path
from bfpp.sim.measurements.validation import compare
from bfpp.sim.memory.device_memory import rank_memories
from bfpp.sim.models.model import load_model, model_flops
from bfpp.sim.operators.operators import Collective, Copies, Routing, Way
from tests.helpers.networks import with_level

DEEPSEEK = load_model("deepseek-v3")
LLAMA = replace(load_model("llama3-70b"), sequence=32768)
B200 = load_cluster("dgx-b200")


def physical(model=DEEPSEEK, cluster=B200, **more):
    degrees = {name: more.pop(name) for name in ("dp", "tp", "cp", "ep") if name in more}
    return PhysicalCosts(model, cluster, Degrees(**degrees), implementation=CURRENT, **more)


@pytest.mark.parametrize("name", ["simumax-2026-context", "simumax-2026-experts"])
def test_published_runs_on_b200(name):
    """One constant was fitted to three of the ten: what dropping rows takes."""
    found = [compare(row) for row in read_measurements(table_path(name))]
    errors = np.abs([each.error_step_time for each in found])
    assert errors.mean() < 3.5
    assert errors.max() < 6
    for each in found:
        assert abs(each.error("memory_largest_gb")) < 0.7
        assert abs(each.error("memory_gb")) < 2


def test_groups_are_placed_tensor_then_context_and_experts_one_after_the_other():
    costing = physical(LLAMA, tp=4, cp=4)
    assert group_place(costing, Group.TP) == (4, (1, 1, 1), (4, 4, 4))
    assert group_place(costing, Group.CP) == (4, (2, 1, 1), (2, 4, 4))
    assert group_place(physical(ep=64, dp=64), Group.EP) == (64, (8, 1, 1), (8, 64, 64))
    placement = DevicePlacement(Degrees(pp=2, dp=2, cp=4, tp=2, ep=8), (8,))
    assert [placement.device(0, 0, 0, 1), placement.device(0, 1, 0), placement.device(1, 0, 0)] == [
        2,
        8,
        16,
    ]
    assert placement.data_groups(2) == (GroupPlace(8, (2, 1), (4, 8)),) * 2
    assert placement.data_groups(8) == (GroupPlace(2, (2, 1), (1, 2)),) * 2


def test_experts_are_sharded_over_what_expert_parallelism_leaves():
    """Of 64 replicas, each expert is on eight devices with 8 of 64, and on one with 64 of 64."""
    layout = Layout(1, 1)
    everything = DEEPSEEK.kinds
    routed = (
        sum(len(layers) * kind.expert_parameters() for kind, layers in everything.items())
        + DEEPSEEK.last_kind.expert_parameters()
    )
    for ep in (8, 64):
        costing = physical(dp=64, ep=ep)
        assert costing.unit_expert_parameters(layout).sum() == pytest.approx(routed / ep)
        assert costing.state_share(layout, Sharding.PARTIAL, ep) == ep / 64
        assert costing.state_share(layout, Sharding.PARTIAL) == 1 / 64
        [memory] = rank_memories(timeline(costing, layout).graph, costing)
        dense = costing.unit_parameters(layout).sum()
        assert memory.state == pytest.approx(12 * (dense / 64 + routed / 64))
    contexts = physical(LLAMA, dp=2, cp=4)
    assert contexts.state_share(layout, Sharding.PARTIAL) == 1 / 8


def timeline(costing, layout):
    experiment = Experiment("1f1b", pp=layout.pp, microbatches=layout.microbatches)
    communication = replace(experiment.configuration.communication, sharding=Sharding.PARTIAL)
    configuration = replace(experiment.configuration, communication=communication)
    return simulate(configuration.graph(), costing)


def test_units_are_made_of_the_kinds_of_their_layers():
    """The dense layers come first, and are recomputed first; the module predicts at the end."""
    costing = physical(recompute=parse_recomputation("2"))
    layout = Layout(4, 1)
    layers = costing.layers(layout)
    assert layers.of_kind.tolist() == [[3, 0, 0, 0], [13, 15, 15, 15 + 1]]
    assert layers.recomputed_of_kind.tolist() == [[2, 0, 0, 0], [0, 2, 2, 2]]
    assert layers.of_unit.sum() == 61 + 1
    counts = [count.tolist() for _, count in part_counts(costing, layers)]
    assert counts[:3] == [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 2]]
    dense, experts = DEEPSEEK.kinds
    parameters = costing.unit_parameters(layout) + costing.unit_expert_parameters(layout)
    whole = [kind.layer_parameters() + kind.expert_parameters() for kind in (dense, experts)]
    assert parameters[1] == pytest.approx(15 * whole[1])
    assert parameters[0] == pytest.approx(3 * whole[0] + 13 * whole[1] + DEEPSEEK.word_parameters())
    modules = whole[1] + DEEPSEEK.prediction_parameters() + 2 * DEEPSEEK.word_parameters()
    assert parameters[3] == pytest.approx(15 * whole[1] + modules)
    assert rank_parameters(costing, layout) == pytest.approx(parameters)


def test_a_module_that_predicts_takes_as_long_as_a_layer_and_a_head_more():
    none = physical(replace(DEEPSEEK, prediction_modules=0))
    one = physical()
    both = [each.layers(Layout(1, 1)) for each in (none, one)]
    seconds = [
        sum(pass_seconds(each, part).forward * count.sum() for part, count in part_counts(each, of))
        for each, of in zip((none, one), both, strict=True)
    ]
    found = parts(one)
    module = (found.layers[1].kept, found.head, found.prediction)
    extra = sum(pass_seconds(one, part).forward for part in module)
    assert seconds[1] - seconds[0] == pytest.approx(extra)
    # Of 61 layers and an output layer, one more of both, and the product of two hidden states.
    assert model_flops(DEEPSEEK, 1) / model_flops(none.model, 1) == pytest.approx(
        1 + 2 / 62, rel=0.01
    )


@given(st.integers(1, 16), st.integers(1, 64), st.sampled_from([0.25, 0.5, 1.0]))
def test_no_more_copies_cross_than_there_are_nodes_or_experts(copies, nodes, share):
    crossing = copies * crossing_share(Copies(copies, share), nodes)
    assert 1 - 1e-9 <= crossing <= min(copies, max(1.0, share * nodes)) + 1e-9
    assert crossing_share(None, nodes) == 1.0


def test_an_all_to_all_takes_the_longer_of_both_ways():
    """In a node as measured; over nodes, seven eighths of it cross on a device's own port."""
    rows = Collective(Way.ALL_TO_ALL, 2**30)
    inside = collective_seconds(rows, GroupPlace.of(8, 1, B200.levels), B200)
    assert inside == pytest.approx(20e-6 + 7 / 8 * 2**30 / 537e9, rel=0.01)
    over = collective_seconds(rows, GroupPlace.of(64, 1, B200.levels), B200)
    network = B200.level("leaf").bandwidth * B200.level("leaf").ring_efficiency
    assert over == pytest.approx(7 / 8 * 2**30 / network, rel=0.01)
    copies = Copies(8, 0.5)
    once = collective_seconds(rows._replace(copies=copies), GroupPlace.of(64, 1, B200.levels), B200)
    assert once == pytest.approx(over * crossing_share(copies, 8), rel=0.01)
    assert crossing_share(copies, 8) == pytest.approx(4 * (1 - 0.75**8) / 8)


def layer_seconds(costing):
    part = pass_seconds(costing, parts(costing).layers[-1].kept)
    return part.forward + part.backward_input + part.backward_weight


def test_what_is_hidden_is_faster_and_what_is_unbalanced_slower():
    spread = {"dp": 64, "ep": 64}
    plain = layer_seconds(physical(**spread))
    assert layer_seconds(physical(routing=Routing(deduplicated=True), **spread)) < plain
    assert layer_seconds(physical(routing=Routing(beside_shared=True), **spread)) < plain
    assert layer_seconds(physical(routing=Routing(imbalance=1.3), **spread)) > 1.1 * plain
    assert layer_seconds(physical(dp=8, ep=8)) < plain


def test_a_ring_hides_what_gathering_shows():
    """Beside attention on long sequences; on short ones, there is not enough of it."""
    for model in (LLAMA, replace(LLAMA, sequence=2048)):
        ring, gather = (
            layer_seconds(physical(model, cp=8, exchange=exchange))
            for exchange in (ContextExchange.RING, ContextExchange.ALL_GATHER)
        )
        assert (ring < gather) is (model is LLAMA)
    waits = with_level(B200, "nvlink", bandwidth=1e15, latency=0.0, synchronisation=0.0)
    free, shown = (layer_seconds(physical(LLAMA, cluster, cp=8)) for cluster in (waits, B200))
    assert shown == pytest.approx(free)


def test_that_experts_are_chosen_evenly_is_said():
    said = {}
    for routing in (Routing(), Routing(imbalance=1.1), Routing(capacity=1.0)):
        costing = physical(replace(DEEPSEEK, layers=4), routing=routing)
        said[routing] = not_modelled(timeline(costing, Layout(1, 1)), costing, 0.0)
    [evenly] = [routing for routing, cases in said.items() if any("chosen" in it for it in cases)]
    assert evenly == Routing()


REFUSED = {
    "--ep 3 --dp 3": "--ep: 3 does not divide deepseek-v3's 256 experts",
    "--cp 2 --tp 3": "--tp: 3 does not divide deepseek-v3's 128 heads",
    "--model deepseek-v2 --ep 5 --dp 5": "--ep: groups of 5 do not fit in nodes of 8",
    "--ep 512 --dp 512": "--ep: 512 does not divide deepseek-v3's 256 experts",
    "--ep 16 --dp 8": "--ep: 16 does not divide dp x cp x tp = 8",
    "--tp 8 --no-sequence-parallel": "--tp: experts with tensor parallelism need --sequence-par",
    "--cp 3": "--cp: a sequence of 4096 cannot be divided into 6",
    "--cp 4096": "--cp: a sequence of 4096 cannot be divided into 8192",
    "--cp 2 --attention unfused": "--cp: context parallelism needs fused attention",
    "--cp 64 --tp 4 --cp-comm all-to-all": "--cp: tp x cp = 256 does not divide 128 heads of keys",
    "--expert-imbalance 0.5": "--expert-imbalance: must be at least 1",
    "--capacity-factor 0": "--capacity-factor: must be more than 0",
    "--dispatch twice": "--dispatch: invalid choice: 'twice'",
    "--dp 4 --dp-replicate 2": "--dp-replicate: needs replicas that shard their state",
    "--dp 4 --dp-replicate 3": "--dp-replicate: 3 does not divide 4 replicas",
    "--dp 8 --dp-replicate 2 --ep 8": "--ep: 8 does not divide dp / dp_replicate x cp x tp = 4",
    "--model llama3-8b --ep 2 --dp 2": "--ep: llama3-8b has no experts",
    "--model llama3-8b --recompute moe": "--recompute: llama3-8b has no moe",
    "--model mixtral-8x22b --shared-overlap": "--shared-overlap: mixtral-8x22b has no shared exper",
}


@pytest.mark.parametrize(("options", "reason"), REFUSED.items())
def test_what_cannot_be_divided_is_refused_in_one_line(bfpp, options, reason):
    given = "--model deepseek-v3 --cluster dgx-b200 --implementation current --pp 1"
    code, out, err = bfpp("simulate", "1f1b", *given.split(), *options.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err


def test_what_an_experiment_says_is_what_is_priced():
    experiment = Experiment(
        "1f1b",
        pp=1,
        cp=2,
        dp=4,
        ep=8,
        cp_comm="all-to-all",
        capacity_factor=1.25,
        dispatch="deduplicated",
        shared_overlap=True,
        model="deepseek-v3",
        cluster="dgx-b200",
        implementation="current",
    )
    execution = experiment.require_physical().execution
    assert (execution.cp, execution.ep, execution.exchange) == (2, 8, ContextExchange.ALL_TO_ALL)
    assert execution.routing == Routing(1.25, 1.0, True, True, CURRENT.dropping_seconds)
    with pytest.raises(InvalidConfiguration, match="'rings' is not one of ring, all-to-all"):
        experiment.changed(cp_comm="rings").require_physical()

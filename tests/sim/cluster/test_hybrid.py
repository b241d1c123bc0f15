"""Hybrid sharding (HSDP): within groups of replicas, and reduced across them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from bfpp.schedules import (
    Communication,
    Degrees,
    InvalidConfiguration,
    Layout,
    Operation,
    Sharding,
    TaskGraph,
    build_graph,
)
from bfpp.schedules.operations.row import Group
from bfpp.schedules.operations.streams import REPLICAS
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.group_location import GroupPlace
from bfpp.sim.cluster.placement import DevicePlacement
from bfpp.sim.cluster.software_profiles import CURRENT
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.experiment.communication_bounds import bounds
from bfpp.sim.experiment.experiment import Experiment, experiment_of
from bfpp.sim.memory.device_memory import rank_memories
from bfpp.sim.models.model import load_model
from bfpp.sim.search.enumeration import configurations
from bfpp.sim.search.evaluation import evaluate
from bfpp.sim.search.outcomes import outcome_of
from bfpp.sim.search.problem import Problem

LLAMA = load_model("llama3-8b")
H100 = load_cluster("dgx-h100")
WHOLE = Experiment(
    "1f1b",
    pp=1,
    dp=16,
    microbatches=2,
    sharding=Sharding.FULL,
    model="llama3-8b",
    cluster="dgx-h100",
    implementation="current",
)
HYBRID = WHOLE.changed(dp_replicate=2)


def graph_of(**more: object) -> TaskGraph:
    communication = Communication(Sharding.FULL, hybrid=True, **more)  # type: ignore[arg-type]
    return build_graph("1f1b", Layout(2, 3, units_per_stage=2), communication)


def seconds_of(experiment: Experiment, operation: Operation) -> float:
    """Seconds of all tasks of an operation with their links to themselves."""
    graph = experiment.graph()
    alone = experiment.require_physical().costs(graph).seconds_alone()
    return float(alone[graph.operation == operation].sum())


# The graph


def test_each_unit_is_reduced_across_replicas_once_it_is_complete() -> None:
    graph = graph_of(clipping=True)
    across = np.flatnonzero(graph.operation == Operation.ALL_REDUCE)
    assert sorted(graph.unit[across]) == [0, 1, 2, 3]
    reduced = np.flatnonzero(graph.operation == Operation.REDUCE)
    assert len(reduced) == 3 * len(across)
    for task in map(graph.task, across.tolist()):
        (last,) = task.dependencies
        assert last == reduced[graph.unit[reduced] == task.unit].max()
        assert graph.lanes[task.lane].stream is REPLICAS
    norms = np.flatnonzero(graph.operation == Operation.NORM)
    waits = [graph.dependencies.of(norm).tolist() for norm in norms]
    assert {graph.task(task).operation for (task,) in waits} == {Operation.ALL_REDUCE}


def test_copies_of_a_stage_are_in_one_group() -> None:
    with pytest.raises(InvalidConfiguration, match="dp_replicate: copies of a stage are all in"):
        HYBRID.changed(schedule="chimera", pp=2).configuration.require()


def test_who_takes_part() -> None:
    whole, hybrid = (Communication(Sharding.FULL, hybrid=each) for each in (False, True))
    groups = [Operation.GATHER.group(each) for each in (whole, hybrid)]
    assert groups == [Group.DP, Group.DP_SHARD]
    assert Operation.NORM.group(hybrid) is Group.DP_SHARD
    assert Operation.ALL_REDUCE.group(hybrid) is Group.DP_REPLICATE


def test_replicas_that_shard_nothing_are_in_no_groups() -> None:
    with pytest.raises(InvalidConfiguration, match="dp_replicate: needs replicas that shard"):
        HYBRID.changed(sharding=Sharding.NONE).graph()
    with pytest.raises(InvalidConfiguration, match="the task graph is not for 2 groups"):
        HYBRID.require_physical().costs(WHOLE.graph())


# Costs


def test_groups_take_consecutive_replicas() -> None:
    """Two tensor-parallel devices; groups of four replicas fill a node, one of each is on two."""
    placement = DevicePlacement(Degrees(pp=2, dp=8, tp=2, dp_replicate=2), (8,))
    assert placement.data_groups(2) == (GroupPlace(4, (1, 1), (4, 4)),) * 2
    assert placement.replica_groups(2) == (GroupPlace(2, (2, 1), (1, 2)),) * 2
    assert placement.data_groups(8) == (GroupPlace(1, (1, 1), (1, 1)),) * 2
    copies = replace(placement, sharing=((0, 1), (0, 1)))
    assert copies.data_groups(2) == (GroupPlace(8, (2, 1), (4, 8)),) * 2
    assert copies.replica_groups(2) == placement.replica_groups(2)


def test_one_replica_a_group_is_data_parallelism_without_sharding() -> None:
    """Nobody to gather from, and an all-reduce of everything."""
    single = WHOLE.changed(dp_replicate=16)
    plain = WHOLE.changed(sharding=Sharding.NONE)
    assert seconds_of(single, Operation.GATHER) == seconds_of(single, Operation.REDUCE) == 0
    expected = seconds_of(plain, Operation.REDUCE)
    assert seconds_of(single, Operation.ALL_REDUCE) == pytest.approx(expected)


def test_shards_of_a_node_cross_the_network_once_a_step() -> None:
    """Of two nodes: gathers and reductions stay in each, and an eighth of all goes across."""
    found = {each.what: each for each in bounds(HYBRID.require_physical(), HYBRID.graph())}
    gather, across = found["DP all-gather"], found["DP all-reduce"]
    assert (gather.members, gather.level) == (8, "nvlink")
    assert (across.members, across.level) == (2, "leaf")
    gradients = CURRENT.gradient_bytes / CURRENT.weight_bytes
    assert across.bytes == pytest.approx(gather.bytes * gradients / 8)
    twice = HYBRID.changed(microbatches=4)
    for operation, times in ((Operation.REDUCE, 2), (Operation.ALL_REDUCE, 1)):
        expected = times * seconds_of(HYBRID, operation)
        assert seconds_of(twice, operation) == pytest.approx(expected)


@pytest.mark.parametrize("sharding", [Sharding.PARTIAL, Sharding.FULL])
def test_each_group_keeps_all_of_the_state(sharding: Sharding) -> None:
    states = []
    for experiment in (WHOLE, HYBRID):
        changed = experiment.changed(sharding=sharding)
        [memory] = rank_memories(changed.graph(), changed.require_physical())
        states.append(memory.state)
    assert states[1] == pytest.approx(2 * states[0])


def test_experts_are_sharded_over_what_their_group_leaves() -> None:
    model, degrees = load_model("mixtral-8x22b"), Degrees(dp=32, ep=8, dp_replicate=2)
    costing = PhysicalCosts(model, H100, degrees, implementation=CURRENT)
    layout = Layout(1, 1)
    assert costing.state_share(layout, Sharding.FULL) == 1 / 16
    assert costing.state_share(layout, Sharding.FULL, 8) == 1 / 2
    places = costing.placement(layout).replica_groups(8)
    assert places == (GroupPlace(2, (2, 1, 1), (1, 2, 2)),)
    links = costing.links(layout)
    experts = links.replicated.parameters[1].sum()
    assert experts == pytest.approx(costing.unit_expert_parameters(layout).sum() / 2)


# What people give


def test_a_slow_network_is_what_it_is_for(bfpp) -> None:  # type: ignore[no-untyped-def]
    given = "--model bert-6.6b --cluster dgx1-v100-ethernet --pp 1 --dp 32 --microbatches 4"
    times = []
    for groups in (1, 4):
        options = f"1f1b {given} --sharding full --dp-replicate {groups} --json"
        code, out, _ = bfpp("simulate", *options.split())
        assert code == 0
        times.append(json.loads(out)["step_time"])
    assert times[1] < 0.5 * times[0]


def test_abstract_costs_have_a_price_of_it(bfpp) -> None:  # type: ignore[no-untyped-def]
    options = "1f1b --pp 2 --dp 4 --dp-replicate 2 --sharding partial --all-reduce 5 --json"
    code, out, _ = bfpp("simulate", *options.split())
    assert code == 0
    without = simulated(bfpp, "1f1b --pp 2 --sharding partial --json")
    assert json.loads(out)["step_time"] == without + 5


def simulated(bfpp, options: str) -> float:  # type: ignore[no-untyped-def]
    _, out, _ = bfpp("simulate", *options.split())
    return float(json.loads(out)["step_time"])


def test_an_experiment_file_and_a_measured_table_name_it() -> None:
    again = experiment_of(HYBRID.record)
    assert again.configuration.degrees.dp_replicate == 2
    assert again.graph().digest == HYBRID.graph().digest


def test_a_search_tries_it_where_something_is_sharded() -> None:
    problem = Problem(LLAMA, H100, (16,), (32,), ("1f1b",), CURRENT, dp_replicate=(1, 2))
    found = configurations(problem)
    groups = {(each.degrees.dp_replicate, str(each.communication.sharding)) for each in found}
    assert groups == {(1, "none"), (1, "partial"), (1, "full"), (2, "partial"), (2, "full")}
    assert all(each.degrees.dp_shard > 1 for each in found if each.communication.hybrid)
    hybrid = next(each for each in found if each.communication.hybrid)
    (outcome,) = evaluate(problem, [hybrid])
    assert outcome_of(outcome.whole_record) == outcome

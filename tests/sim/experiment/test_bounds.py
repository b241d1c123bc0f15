"""Bounds of communication, as `bfpp explain` says them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bfpp.command_line import main
from bfpp.schedules import Communication, Degrees, Layout, Operation, Sharding, build_graph
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import CURRENT
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.experiment.communication_bounds import bounds
from bfpp.sim.models.model import load_model
from tests.helpers.networks import with_level

H100 = load_cluster("dgx-h100")
COSTS = PhysicalCosts(load_model("llama3-8b"), H100, Degrees(tp=8, dp=128), implementation=CURRENT)
NVL72 = load_cluster("gb200-nvl72")
UNEVEN = Degrees(pp=4, tp=4, dp=64)
"""On NVL72, whose racks some ranks' replicas fill better than others."""


def found(costs=COSTS, sharding=Sharding.PARTIAL):
    graph = build_graph("1f1b", Layout(2, 4), Communication(sharding))
    return {each.what: each for each in bounds(costs, graph)}


def test_each_kind_of_communication_has_its_level_and_algorithm():
    assert {what: (each.algorithm, each.level, each.members) for what, each in found().items()} == {
        "TP all-gather": ("ring", "nvlink", 8),
        "TP reduce-scatter": ("ring", "nvlink", 8),
        "TP all-reduce": ("ring", "nvlink", 8),
        "DP all-gather": ("ring", "leaf", 128),
        "DP reduce-scatter": ("ring", "leaf", 128),
        "PP transfer": ("send", "spine", 2),
    }
    assert "DP all-reduce" in found(sharding=Sharding.NONE)
    alone = replace(COSTS, degrees=Degrees())
    assert set(found(alone)) == {"PP transfer"}


def test_a_spine_with_few_links_bounds_what_crosses_it():
    narrow = replace(COSTS, cluster=with_level(H100, "spine", oversubscription=64.0))
    assert found(narrow)["DP all-gather"].level == "spine"
    assert found(narrow)["DP all-gather"].seconds > found()["DP all-gather"].seconds
    assert found(narrow)["TP all-gather"] == found()["TP all-gather"]


def test_small_messages_are_bound_by_latency():
    each = found()
    assert [what for what in each if each[what].is_latency] == ["TP all-reduce"]


@pytest.mark.parametrize("sharding", [Sharding.NONE, Sharding.PARTIAL])
@pytest.mark.parametrize(
    ("costs", "ranks"), [(COSTS, 2), (replace(COSTS, cluster=NVL72, degrees=UNEVEN), 4)]
)
def test_what_a_lone_reduction_takes_is_what_it_is_said_to_take(costs, ranks, sharding):
    graph = build_graph("1f1b", Layout(ranks, 4), Communication(sharding))
    seconds = costs.costs(graph).seconds_alone()
    by_name = {each.what: each for each in bounds(costs, graph)}
    reduction = "DP all-reduce" if sharding is Sharding.NONE else "DP reduce-scatter"
    for name, operation in (("DP all-gather", Operation.GATHER), (reduction, Operation.REDUCE)):
        if name in by_name:
            longest = seconds[graph.operation == operation].max()
            assert longest == pytest.approx(by_name[name].seconds)
    assert reduction in by_name


@pytest.mark.parametrize("model", [(), ("--model", "llama3-8b", "--cluster", "gb200-nvl72")])
def test_explain_tells_it(model, capsys):
    words = ["explain", "1f1b", "--pp", "2", "--microbatches", "2", *model]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["communication"]
    assert [each["what"] for each in told] == (["PP transfer"] if model else [])
    assert main(words) == 0
    assert ("bound by" in capsys.readouterr().out) == bool(model)

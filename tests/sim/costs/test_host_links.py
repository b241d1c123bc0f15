"""Copies to the host share links with what goes to other nodes, and memory with each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bfpp.schedules import Operation
from bfpp.schedules.columns import NONE
from bfpp.schedules.operations.operations import transfers
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.engines.compiled_engine import times
from bfpp.sim.engines.cost_model import Costs
from bfpp.sim.engines.engines import simulate
from bfpp.sim.engines.simpy_engine import simulate as replay
from bfpp.sim.experiment.experiment import Experiment

H100 = load_cluster("dgx-h100")
ALONE = {"host_link": None, "host_memory_bandwidth": None}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-v", "dualpipe")


def experiment(schedule: str = "1f1b", offload: str = "all", **device: float | None) -> Experiment:
    cluster = replace(H100, device=replace(H100.device, **{**ALONE, **device}))
    return Experiment(
        schedule, model="llama3-8b", cluster=cluster, implementation="current", pp=4, tp=8, dp=2,
        microbatches=8, sharding="zero1", offload=offload,
    )  # fmt: skip


def costs_of(chosen: Experiment) -> Costs:
    return chosen.costs.costs(chosen.graph())


def only_moving(costs: Costs, moves: np.ndarray) -> Costs:
    """The same, in which other tasks take no time: all that move begin at once."""
    return replace(
        costs, seconds=np.zeros(len(costs.seconds)), bytes=np.where(moves, costs.bytes, 0.0)
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_wide_links_change_nothing_and_both_engines_agree_on_narrow_ones(schedule):
    alone = experiment(schedule)
    graph = alone.graph()
    wide = experiment(schedule, host_link=1e15, host_memory_bandwidth=1e15)
    narrow = experiment(schedule, host_link=20e9, host_memory_bandwidth=150e9)
    free, same, less = (simulate(graph, each.costs) for each in (alone, wide, narrow))
    np.testing.assert_allclose(same.end, free.end, rtol=1e-9)
    assert less.step_time > 1.05 * free.step_time
    np.testing.assert_allclose(replay(graph, costs_of(narrow)).end, less.end, rtol=1e-6)


def test_graphs_with_and_without_copies_share_a_cost_model():
    shared = experiment(host_link=20e9)
    for offload in ("off", "1000", "all", "off"):
        graph = shared.changed(offload=offload).graph()
        known, fresh = shared.costs.costs(graph), experiment(host_link=20e9).costs.costs(graph)
        for name in ("seconds", "bytes", "ports", "bandwidth"):
            np.testing.assert_array_equal(getattr(known, name), getattr(fresh, name))


def test_without_copies_nothing_is_shared():
    with_links = experiment(offload="off", host_link=1e9, host_memory_bandwidth=1e9)
    found, known = costs_of(with_links), costs_of(experiment(offload="off"))
    for name in ("seconds", "bytes", "ports", "bandwidth"):
        np.testing.assert_array_equal(getattr(found, name), getattr(known, name))


def test_a_copy_and_what_goes_to_another_node_take_turns_on_their_link():
    """Each flow of a direction, by itself and with others, at the rates of the definition."""
    chosen = experiment(host_link=20e9, host_bandwidth=15e9)
    graph, costs = chosen.graph(), costs_of(chosen)
    out = np.flatnonzero(graph.operation == Operation.OFFLOAD)[0]
    sending = np.flatnonzero(
        np.isin(graph.operation, transfers()) & (graph.rank == graph.rank[out])
    )[0]
    assert costs.seconds[out] == 0
    assert costs.seconds_moving()[out] == pytest.approx(costs.bytes[out] / 15e9)
    assert costs.seconds_moving()[sending] == pytest.approx(costs.bytes[sending] / 20e9)
    link = set(costs.ports[out].tolist()) & set(costs.ports[sending].tolist()) - {NONE}
    assert [costs.bandwidth[each] for each in link] == [20e9]
    back = np.flatnonzero((graph.operation == Operation.RELOAD) & (graph.rank == graph.rank[out]))
    assert link.isdisjoint(costs.ports[back].ravel().tolist())


def test_both_directions_share_the_memory_of_a_node():
    """Eight devices copy at 55 GB/s each way where the memory gives all of them 240 GB/s."""
    chosen = experiment("gpipe", host_memory_bandwidth=240e9)
    graph, costs = chosen.graph(), costs_of(chosen)
    rank = graph.rank == 1
    out, back = (rank & (graph.operation == each) for each in (Operation.OFFLOAD, Operation.RELOAD))
    taken = [times(graph, only_moving(costs, each)).end.max() for each in (out, back, out | back)]
    assert taken[0] == pytest.approx(costs.bytes[out].sum() / 30e9)
    assert taken[2] == pytest.approx(taken[0] + taken[1])
    assert costs.seconds_moving()[out].sum() > costs.bytes[out].sum() / 31e9


def test_what_stays_in_a_node_passes_no_link():
    inside = experiment(host_link=1e9).changed(tp=1, dp=1, pp=8, microbatches=8)
    graph, costs = inside.graph(), costs_of(inside)
    moving = np.isin(graph.operation, transfers())
    assert (costs.bandwidth[costs.ports[moving][costs.ports[moving] != NONE]] > 1e9).all()

"""Dispatch and combine as pieces of passes: the same step, in whole passes and in pieces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp import Experiment
from bfpp.api.pieces import in_pieces
from bfpp.api.predictions import predict
from bfpp.api.saved import SavedTimeline
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import NONE
from bfpp.schedules.formats.graph_json import read_graph, write_graph
from bfpp.schedules.operations.operations import Operation
from bfpp.schedules.operations.streams import EXPERTS
from bfpp.schedules.validity import violations
from bfpp.sim.cluster.software_profiles import BFPP
from bfpp.sim.costs.expert_exchanges import with_exchanges
from bfpp.sim.costs.physical_step import HostStep
from bfpp.sim.costs.step_costs import host_seconds
from bfpp.sim.costs.units.seconds import blocked_seconds, parts
from bfpp.sim.engines.engines import simulate
from bfpp.traces.explain.causes import Cause, Causes
from bfpp.traces.figures.panel import Panel
from bfpp.traces.figures.svg.schedule import svg
from bfpp.traces.figures.terminal import text
from bfpp.traces.formats.timeline_json import read_timeline, write_timeline
from bfpp.traces.timeline.metrics import bubble, bubble_fraction

EXCHANGES = (Operation.EXPERT_DISPATCH, Operation.EXPERT_COMBINE)


def experiment(schedule="1f1b", **more):
    usual = {"model": "mixtral-8x22b", "cluster": "dgx-h100", "implementation": "current"}
    return Experiment(schedule, **{**usual, "pp": 4, "dp": 8, "ep": 8, "microbatches": 6, **more})


def both(of):
    """The plain graph, and the one with exchanges; and the costs of both."""
    graph, costs = of.graph(), of.require_physical()
    return graph, with_exchanges(graph, costs), costs


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(["1f1b", "zb-h1", "breadth-first", "interleaved", "dualpipe", "dualpipe-v"]),
    st.sampled_from(["none", "moe", "full", "5"]),
    st.sampled_from(["deepseek-v3", "mixtral-8x22b"]),
    st.sampled_from([2, 8]),
    st.sampled_from(["bf16", "fp8-block"]),
)
def test_whole_passes_and_pieces_take_equally_long(schedule, recompute, model, ep, precision):
    """As long as where nothing is in pieces: what pieces take is out of their passes."""
    more = {"loops": 2, "microbatches": 8} if schedule in ("breadth-first", "interleaved") else {}
    more |= {"microbatches": 10} if schedule.startswith("dualpipe") else {}
    narrow = {"quantised_dispatch": True} if precision != "bf16" else {}
    given = {"model": model, "recompute": recompute, "ep": ep, "precision": precision, "tp": 1}
    graph, composite, costs = both(experiment(schedule, **given, **narrow, **more))
    pieces = composite.expanded()
    whole = simulate(graph, costs)
    assert simulate(composite, costs).step_time == pytest.approx(whole.step_time, rel=1e-12)
    expanded = simulate(pieces, costs)
    assert expanded.step_time == pytest.approx(whole.step_time, rel=1e-9)
    assert (expanded.duration >= 0).all()
    assert violations(composite) == []


def test_the_host_dispatches_passes_and_not_their_pieces():
    """Pieces keep a host as busy as their whole passes do, and so its step is as long."""
    implementation = replace(BFPP, dispatch_seconds=1.0)
    graph, composite, costs = both(experiment(implementation=implementation))
    whole, pieces = (host_seconds(HostStep(costs, each)) for each in (graph, composite.expanded()))
    assert pieces == pytest.approx(whole)
    assert costs.step_time(composite.expanded()) == pytest.approx(costs.step_time(graph), rel=0.01)
    assert costs.step_time(graph) > 0.99 * whole


def test_in_a_fused_block_one_pass_exchanges_while_the_other_computes():
    """It loses the multiprocessors that exchanges take; a step without blocks is still longer."""
    given = {"model": "deepseek-v3", "cluster": "h800-3200g", "dp": 16, "ep": 16}
    of = experiment("dualpipe", microbatches=16, dispatch="deduplicated", **given)
    graph, composite, costs = both(of)
    timeline = simulate(composite.expanded(), costs)
    pieces, rank = timeline.graph, timeline.graph.rank == 1
    exchanged = np.flatnonzero(np.isin(pieces.operation, EXCHANGES) & rank)
    computed = np.flatnonzero(pieces.is_compute & rank)
    hidden = [
        np.maximum(
            np.minimum(timeline.end[computed], timeline.end[each])
            - np.maximum(timeline.start[computed], timeline.start[each]),
            0,
        ).sum()
        for each in exchanged
    ]
    in_block = pieces.block[exchanged] != NONE
    assert (np.array(hidden)[~in_block] == 0).all()
    assert np.array(hidden)[in_block].sum() > 0.7 * timeline.duration[exchanged[in_block]].sum()
    apart = of.changed(fused_blocks=False)
    step = simulate(graph, costs).step_time
    assert costs.shortest_step(graph.layout) < step < simulate(apart.graph(), costs).step_time


@pytest.mark.parametrize(("recompute", "backward"), [("none", 1), ("moe", 2)])
def test_each_layer_dispatches_and_combines_once_a_pass(recompute, backward):
    """And again where it is recomputed; each for as long as it would block by itself."""
    of = experiment(recompute=recompute)
    _, composite, costs = both(of)
    timeline = simulate(composite.expanded(), costs)
    graph = timeline.graph
    layer = parts(costs).layers[0].kept
    sent = [each for it in layer.operators for each in it.forward.collectives]
    for operation, collective in zip(EXCHANGES, sent, strict=True):
        chosen = graph.operation == operation
        assert chosen.sum() == of.transformer.layers * 6 * (1 + backward)
        np.testing.assert_allclose(
            timeline.duration[chosen], blocked_seconds(costs, collective), rtol=1e-9
        )
    assert {lane.rank for lane in graph.lanes if lane.stream is EXPERTS} == set(range(4))


def test_they_are_drawn_explained_written_and_read():
    _, composite, costs = both(experiment(microbatches=4))
    timeline = simulate(composite.expanded(), costs)
    assert "rank 3  experts" in text(timeline, width=120)
    exchanged = np.isin(timeline.graph.operation, EXCHANGES) & (timeline.graph.rank == 1)
    # Its own, and those of other ranks that it waits for.
    idle = Causes(timeline).idle[1]
    assert idle[Cause.EXPERT] > timeline.duration[exchanged].sum() * (1 - 1e-9)
    drawn = in_pieces(predict(experiment(microbatches=4)))
    np.testing.assert_allclose(drawn.timeline.end, timeline.end)
    with pytest.raises(InvalidConfiguration, match="needs --model"):
        in_pieces(predict(Experiment("1f1b", pp=2)))
    for graph in (composite, timeline.graph):
        assert read_graph(write_graph(graph)).digest == graph.digest
    saved = SavedTimeline(read_timeline(write_timeline(drawn.timeline)))
    assert saved.idle[1][Cause.EXPERT] == pytest.approx(idle[Cause.EXPERT])
    assert saved.record["bubble"] == bubble(drawn.timeline)


def test_pictures_have_the_numbers_of_whole_passes():
    """Bubble, memory and metrics of ranks: a step is the same step, however it is drawn."""
    whole = predict(experiment(microbatches=4))
    drawn = in_pieces(whole)
    assert len(drawn.timeline.graph) > len(whole.timeline.graph)
    assert bubble(drawn.timeline) == pytest.approx(bubble(whole.timeline), rel=1e-9)
    assert bubble_fraction(drawn.timeline) == pytest.approx(bubble_fraction(whole.timeline))
    assert drawn.highlights() == whole.highlights()
    assert [curve.total.max() for curve in drawn.memory_curves] == [
        curve.total.max() for curve in whole.memory_curves
    ]
    assert f"bubble {100 * bubble(whole.timeline):.3g} %" in svg([Panel("", drawn.timeline)])


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"ep": 1}, "needs expert parallelism"),
        ({"microbatch_overlap": True}, "all-to-alls overlap the pass"),
        ({"model": "deepseek-v3", "shared_overlap": True}, "all-to-alls overlap the pass"),
    ],
)
def test_what_a_pass_does_not_wait_for_is_no_piece_of_it(more, reason):
    with pytest.raises(InvalidConfiguration, match=reason):
        both(experiment(**more))

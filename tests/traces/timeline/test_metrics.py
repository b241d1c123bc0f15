"""Metrics of timelines, against small cases worked out by hand and brute force."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.traces.rank_times_by_numpy import rank_times_by_numpy
from bfpp import Experiment
from bfpp.api.pieces import in_pieces
from bfpp.api.predictions import predict
from bfpp.schedules import Communication, Layout, Operation, Sharding, build_graph
from bfpp.schedules.columns import NONE
from bfpp.schedules.graph.counts import peak_activations
from bfpp.schedules.graph.task_columns import COLUMNS
from bfpp.schedules.operations.streams import (
    RECEIVE_ACTIVATIONS,
    RECEIVE_GRADIENTS,
    SEND_ACTIVATIONS,
    SEND_GRADIENTS,
)
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import simulate
from bfpp.traces.timeline.metrics import bubble, compute_time, lane_busy_time, rank_metrics
from bfpp.traces.timeline.rank_times import rank_times
from tests.helpers.live_counts import (
    gradient_buffers_over_time,
    live_activations_over_time,
    weight_buffers_over_time,
)
from tests.helpers.measured import OFFSET, measured
from tests.helpers.strategies import graphs

COSTS = AbstractCosts(forward=2, backward=4, transfer=1, gather=2, reduce=1, optimizer=1)
SOME = settings(derandomize=True, deadline=None, max_examples=40)


@SOME
@given(graphs())
def test_time_is_either_busy_or_idle(graph):
    timeline = simulate(graph, COSTS)
    for rank in rank_metrics(timeline):
        assert rank.compute_time + rank.idle == pytest.approx(timeline.step_time)
        assert 0 <= rank.exposed_transfer <= rank.idle + 1e-9
        assert 0 <= rank.exposed_data <= rank.idle + 1e-9
        assert 0 <= rank.start < rank.end <= timeline.step_time
    busy = lane_busy_time(timeline)
    assert (busy <= timeline.step_time + 1e-9).all()
    twice = np.where(graph.peer != NONE, 2, 1)
    assert busy.sum() == pytest.approx((timeline.duration * twice).sum())


@SOME
@given(graphs(), st.data())
def test_exposed_time_by_brute_force(graph, data):
    """All costs are whole seconds, or halves for slices: each is wholly exposed or not at all."""
    timeline = simulate(graph, COSTS)
    rank = data.draw(st.integers(0, graph.layout.pp - 1))
    here = (graph.rank == rank) | (graph.peer == rank)

    def halves(chosen):
        return {
            half
            for task in np.flatnonzero(chosen & here)
            for half in range(int(2 * timeline.start[task]), int(2 * timeline.end[task]))
        }

    expected = halves(graph.is_transfer) - halves(graph.is_compute)
    assert rank_metrics(timeline)[rank].exposed_transfer == len(expected) / 2


def require_same_by_numpy(drawn, start, end):
    expected = rank_times_by_numpy(drawn.graph, start, end)
    found = rank_times(drawn.graph, start, end)
    for name, column in expected._asdict().items():
        np.testing.assert_array_equal(getattr(found, name), column, name)


@SOME
@given(measured(clock_error=0.3))
def test_rank_times_are_those_by_numpy(drawn):
    """To the last bit, tasks out of order; and in whole seconds, where many start together."""
    times = drawn.start - OFFSET, drawn.end - OFFSET
    require_same_by_numpy(drawn, *times)
    require_same_by_numpy(drawn, *map(np.round, times))


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipe"])
def test_the_same_of_exchanges_inside_passes(schedule):
    given = {"model": "mixtral-8x22b", "cluster": "dgx-h100", "implementation": "current"}
    experiment = Experiment(schedule, **given, pp=4, dp=8, ep=8, microbatches=8)
    timeline = in_pieces(predict(experiment)).timeline
    require_same_by_numpy(timeline, timeline.start, timeline.end)
    assert all(timeline.rank_times.exposed[-1] > 0)


def test_metrics_of_a_predicted_timeline_that_was_pickled_or_changed():
    timeline = simulate(build_graph("1f1b", Layout(4, 8)), COSTS)
    metrics = rank_metrics(timeline)
    assert rank_metrics(pickle.loads(pickle.dumps(timeline))) == metrics
    later = rank_metrics(replace(timeline, start=3 * timeline.start, end=3 * timeline.end))
    for former, latter in zip(metrics, later, strict=True):
        assert latter.exposed_transfer == 3 * former.exposed_transfer > 0
        assert latter.idle == 3 * former.idle


def test_columns_may_be_of_wider_integers():
    timeline = simulate(build_graph("1f1b", Layout(4, 8)), COSTS)
    columns = {name: getattr(timeline.graph, name).astype(int) for name in COLUMNS}
    wider = replace(timeline, graph=replace(timeline.graph, **columns))
    assert rank_metrics(wider) == rank_metrics(timeline)


def test_metrics_of_times_that_are_no_numbers():
    """As costs of one's own may be."""
    timeline = simulate(build_graph("1f1b", Layout(4, 8)), COSTS)
    timeline.start[::5] = np.nan
    assert all(np.isnan(rank.idle) for rank in rank_metrics(replace(timeline)))


@SOME
@given(graphs())
def test_live_buffers_stay_within_those_there_are(graph):
    timeline = simulate(graph, COSTS)
    communication, peaks = graph.communication, peak_activations(graph)
    for metrics in rank_metrics(timeline):
        live = live_activations_over_time(timeline, metrics.rank)
        assert live.peak == peaks[metrics.rank]
        assert live.alive[-1] == 0
        weights = weight_buffers_over_time(timeline, metrics.rank)
        units = len(graph.layout.units_of(metrics.rank))
        most = 2 * communication.weight_buffers
        assert 1 <= weights.peak <= (most if communication.gathers_runs else units)
        gradients = gradient_buffers_over_time(timeline, metrics.rank)
        assert 1 <= gradients.peak <= (2 if communication.reduces_runs else units)
        assert gradients.alive[-1] == weights.alive[-1] == 0


def test_breadth_first_needs_two_layers_and_depth_first_twice_as_many():
    """The paper, on full sharding: two layers, or four where passes take turns."""
    peaks = {}
    for name in ("breadth-first", "depth-first"):
        graph = build_graph(name, Layout(4, 16, 4), Communication(Sharding.FULL))
        timeline = simulate(graph, AbstractCosts(gather=0.5, reduce=0.5))
        peaks[name] = max(weight_buffers_over_time(timeline, rank).peak for rank in range(4))
    assert peaks == {"breadth-first": 2, "depth-first": 4}


def test_two_ranks_by_hand():
    """GPipe, 2 ranks, 2 micro-batches, backward 2, transfers of 1 beside the compute.

    rank 0   F F . . . . . . B B B B     rank 1   . . F F B B B B
    """
    graph = build_graph("gpipe", Layout(2, 2))
    timeline = simulate(graph, AbstractCosts(transfer=1))
    assert timeline.step_time == 11
    assert compute_time(timeline).tolist() == [6, 6]
    assert bubble(timeline) == pytest.approx(5 / 6)
    first, second = rank_metrics(timeline)
    assert (first.start, first.end, first.idle) == (0, 11, 5)
    assert (second.start, second.end, second.idle) == (2, 8, 5)
    assert (first.exposed_transfer, second.exposed_transfer) == (2, 2)
    sends = [
        lane.stream
        for lane, busy in zip(graph.lanes, lane_busy_time(timeline), strict=True)
        if busy == 2
    ]
    assert sends == [
        SEND_ACTIVATIONS,
        RECEIVE_GRADIENTS,
        RECEIVE_ACTIVATIONS,
        SEND_GRADIENTS,
    ]


def test_a_gather_in_the_way_is_exposed():
    graph = build_graph("breadth-first", Layout(1, 2, 2), Communication(Sharding.FULL))
    timeline = simulate(graph, AbstractCosts(gather=3))
    (rank,) = rank_metrics(timeline)
    gathers = np.flatnonzero(graph.operation == Operation.GATHER)
    assert timeline.start[gathers].tolist() == [0, 3, 6, 9]
    assert rank.exposed_data == timeline.step_time - rank.compute_time

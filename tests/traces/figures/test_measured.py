"""Figures and metrics of measured timelines, whose tasks start late and whose clocks err."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given, settings

from bfpp.schedules import Communication, Layout, Operation, Sharding, build_graph
from bfpp.schedules.columns import NONE
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.measured.wait_gains import waits_with_gains
from bfpp.sim.engines.compiled_engine import simulate
from bfpp.traces.explain.causes import Cause, Causes
from bfpp.traces.figures.panel import Panel
from bfpp.traces.figures.svg.schedule import svg
from bfpp.traces.figures.terminal import text
from bfpp.traces.formats.perfetto_writing import events
from bfpp.traces.page.html import page
from bfpp.traces.timeline.metrics import lane_busy_time, rank_metrics
from bfpp.traces.timeline.timeline import MEASURED, Timeline
from tests.helpers.live_counts import (
    gradient_buffers_over_time,
    live_activations_over_time,
    weight_buffers_over_time,
)
from tests.helpers.measured import executed, measured, predecessors

SOME = settings(derandomize=True, deadline=None, max_examples=60)
FEW = settings(derandomize=True, deadline=None, max_examples=15)
CLOSE = 1e-5
"""Seconds to which a clock of 1.7e9 seconds can be told, a few hundred times over."""

noisy = measured(clock_error=0.3)


def attribution_has_no_remainder(timeline):
    causes = Causes(timeline)
    for wait in causes.waits:
        assert wait.end > wait.begin
        assert sum(wait.seconds.values()) == pytest.approx(wait.end - wait.begin, abs=CLOSE)
        assert min(wait.seconds.values()) > 0
    for metrics in rank_metrics(timeline):
        idle = causes.idle[metrics.rank]
        assert sum(idle.values()) == pytest.approx(metrics.idle, abs=CLOSE)
        assert 0 <= metrics.utilisation <= 1 + CLOSE
        assert -CLOSE <= metrics.exposed_transfer <= metrics.idle + CLOSE
        assert -CLOSE <= metrics.exposed_data <= metrics.idle + CLOSE
        assert -CLOSE <= metrics.start <= metrics.end <= timeline.step_time + CLOSE


@SOME
@given(measured())
def test_idle_time_is_attributed_without_remainder(timeline):
    attribution_has_no_remainder(timeline)


@SOME
@given(noisy)
def test_idle_time_is_attributed_without_remainder_by_clocks_that_err(timeline):
    attribution_has_no_remainder(timeline)


@SOME
@given(measured())
def test_compute_and_idle_time_make_the_step(timeline):
    for metrics in rank_metrics(timeline):
        assert metrics.compute_time + metrics.idle == pytest.approx(timeline.step_time, abs=CLOSE)
    assert (lane_busy_time(timeline) <= timeline.step_time + CLOSE).all()


@SOME
@given(noisy)
def test_the_blocker_is_the_latest_to_end_of_those_before(timeline):
    blocker = Causes(timeline).blocker
    for number, before in enumerate(predecessors(timeline.graph)):
        latest = max(((timeline.end[each], each) for each in before), default=(0, NONE))
        assert blocker[number] == latest[1]


@SOME
@given(measured())
def test_the_critical_path_and_its_gaps_make_the_step(timeline):
    path = Causes(timeline).critical_path
    assert path == sorted(path)
    assert timeline.end[path[-1]] == timeline.end.max()
    gaps = timeline.start[path[1:]] - timeline.end[path[:-1]]
    assert (gaps >= -CLOSE).all()
    first = timeline.start[path[0]] - timeline.start.min()
    total = timeline.duration[path].sum() + gaps.sum() + first
    assert total == pytest.approx(timeline.step_time, abs=CLOSE)


@SOME
@given(noisy)
def test_no_task_ends_before_it_starts(timeline):
    assert (timeline.duration >= 0).all()
    assert timeline.step_time >= 0


@SOME
@given(measured())
def test_live_buffers_are_counted(timeline):
    for rank in range(timeline.graph.layout.pp):
        for level in (
            live_activations_over_time,
            weight_buffers_over_time,
            gradient_buffers_over_time,
        ):
            alive = level(timeline, rank).alive
            assert alive[-1] == 0
            assert (alive >= 0).all()


@SOME
@given(measured())
def test_no_wait_costs_more_than_it_lasts(timeline):
    for wait in waits_with_gains(Causes(timeline)):
        assert wait.gain is None or 0 <= wait.gain <= wait.end - wait.begin + CLOSE


@FEW
@given(noisy)
def test_every_figure_draws_it(timeline):
    assert text(timeline, width=80)
    assert svg([Panel("measured", timeline)])
    causes = Causes(timeline)
    panel = Panel(
        "measured",
        timeline,
        waits=tuple(waits_with_gains(causes)),
        critical_path=tuple(causes.critical_path),
    )
    assert page([panel], "measured")
    reached = {}
    for event in events(timeline):
        json.dump(event, io.StringIO(), allow_nan=False)
        if event["ph"] == "X":
            thread = event["pid"], event["tid"]
            assert event["dur"] >= 0
            assert event["ts"] >= reached.get(thread, 0) - 1e-6
            reached[thread] = event["ts"] + event["dur"]


def example():
    """Two ranks, one micro-batch; backward 2, transfers 1, as if it had been measured."""
    graph = build_graph("gpipe", Layout(2, 1), Communication(Sharding.PARTIAL))
    simulated = simulate(graph, AbstractCosts(transfer=1, reduce=1).costs(graph))
    return Timeline(graph, simulated.start.copy(), simulated.end.copy(), MEASURED)


def shifted(timeline, task, seconds, **columns):
    """The timeline with a task, and all that starts with it or later, so much later."""
    after = timeline.start >= timeline.start[task]
    start, end = (column + after * seconds for column in (timeline.start, timeline.end))
    return Timeline(timeline.graph, start, end, MEASURED, **columns)


def found(timeline, rank):
    return {cause: each for cause, each in Causes(timeline).idle[rank].items() if each}


def first(timeline, operation, rank):
    graph = timeline.graph
    return int(np.flatnonzero((graph.operation == operation) & (graph.rank == rank))[0])


def test_what_lies_between_a_blocker_and_a_start_is_dispatch():
    prompt = example()
    late = shifted(prompt, first(prompt, Operation.FORWARD, 1), 2)
    assert found(late, 1)[Cause.DISPATCH] == 2
    assert found(late, 0)[Cause.DISPATCH] == 2
    assert Cause.REPLICAS not in found(late, 1)


def test_a_collective_that_is_ready_waits_for_its_peers():
    """The reduction could begin half a second late, and waits for its replicas for the rest."""
    prompt = example()
    reduction = first(prompt, Operation.REDUCE, 0)
    ready = prompt.start.copy()
    ready[reduction] += 0.5
    late = shifted(prompt, reduction, 2, ready=ready)
    idle = found(late, 0)
    assert idle[Cause.DISPATCH] == 0.5
    assert idle[Cause.REPLICAS] == 1.5
    assert idle[Cause.REDUCTION] == found(prompt, 0)[Cause.REDUCTION] == 1


def test_tasks_that_overlap_on_a_lane_are_busy_once():
    graph = build_graph("gpipe", Layout(1, 2))
    prompt = simulate(graph, AbstractCosts().costs(graph))
    early = prompt.start.copy()
    early[first(prompt, Operation.BACKWARD, 0)] -= 0.25
    timeline = Timeline(graph, early, prompt.end, MEASURED)
    (metrics,) = rank_metrics(timeline)
    assert (metrics.compute_time, metrics.idle, metrics.utilisation) == (6.25, 0, 1)
    assert Causes(timeline).waits == []


def test_a_simulated_timeline_has_no_measurements():
    graph = build_graph("gpipe", Layout(1, 2))
    simulated = simulate(graph, AbstractCosts().costs(graph))
    assert (simulated.posted, simulated.ready, dict(simulated.about)) == (None, None, {})
    assert not simulated.is_measured
    assert executed(graph, 0).is_measured


def test_a_step_in_which_nothing_lasts():
    graph = build_graph("breadth-first", Layout(2, 2, 2), Communication(Sharding.FULL))
    moment = np.full(len(graph), 5.0)
    timeline = Timeline(graph, moment, moment - 1e-6, MEASURED, moment, moment)
    assert timeline.step_time == 0
    attribution_has_no_remainder(timeline)
    assert text(timeline) == "no task takes any time\n"
    assert svg([Panel("", timeline)])
    assert page([Panel("", timeline)], "")

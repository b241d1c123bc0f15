"""Durations of one schedule's timeline as costs of another: as the other one is simulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bfpp.api.saved import SavedTimeline
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Sharding,
    build_graph,
    find_schedule,
)
from bfpp.schedules.columns import NONE
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.cost_model import Costs, fixed_costs
from bfpp.sim.engines.engines import simulate
from bfpp.sim.remedies.measured_elsewhere import MeasuredElsewhere
from bfpp.sim.remedies.shared_ports import ports_of
from bfpp.traces.timeline.timeline import MEASURED, Timeline

COSTS = AbstractCosts(
    transfer=0.25, reduce=0.5, gather=0.25, optimizer=0.1, all_reduce=0.25, norm=0.1
)
LOOPED = ("breadth-first", "depth-first")
NAMES = ("gpipe", "1f1b", "zb-h1", *LOOPED)
COMMUNICATION = Communication(Sharding.PARTIAL, clipping=True)


def graph_of(name: str, pp: int = 4, microbatches: int = 8, parts: int = 2):
    rule = find_schedule(name)
    return build_graph(rule, rule.divided(pp, microbatches, parts), COMMUNICATION)


class Uneven:
    """Costs that differ by unit and micro-batch, as unequal stages and documents make them."""

    def costs(self, graph):
        costs = COSTS.costs(graph)
        by_unit = 1 + 0.1 * graph.unit
        by_both = by_unit * (1 + 0.3 * (graph.microbatch % 3))
        return replace(costs, seconds=costs.seconds * np.where(graph.is_compute, by_both, 1.0))


@pytest.mark.parametrize("model", [COSTS, Uneven()], ids=["alike", "uneven"])
@pytest.mark.parametrize("name", NAMES)
def test_another_schedule_takes_what_it_is_simulated_to_take(name, model):
    saved = SavedTimeline(simulate(graph_of(name), model))
    for other in NAMES:
        expected = simulate(graph_of(other), model).step_time
        replayed = saved.as_schedule(find_schedule(other))
        assert replayed.timeline.step_time == pytest.approx(expected, rel=0.01), other
        assert "not_measured" not in replayed.timeline.about
    itself = saved.as_itself().timeline
    assert itself.step_time == pytest.approx(saved.timeline.step_time, rel=1e-9)


def test_stages_that_are_divided_otherwise_take_their_part():
    halves = SavedTimeline(simulate(graph_of("1f1b"), AbstractCosts(1, 2)))
    assert halves.as_schedule(find_schedule("1f1b"), 1).timeline.step_time == 66
    wholes = SavedTimeline(simulate(graph_of("1f1b", parts=1), AbstractCosts(2, 4)))
    looped = wholes.as_schedule(find_schedule("breadth-first"), 2).timeline
    expected = simulate(graph_of("breadth-first"), AbstractCosts(1, 2)).step_time
    assert looped.step_time == pytest.approx(expected)


class Ports:
    """Transfers of `seconds` that share what leaves a rank, and what enters it."""

    def __init__(self, seconds):
        self.seconds = seconds

    def costs(self, graph):
        costs, tasks = COSTS.costs(graph), np.flatnonzero(graph.is_transfer)
        ports = np.full((len(graph), 2), NONE, dtype=np.int32)
        ports[tasks] = ports_of(graph, tasks)
        moved = np.where(graph.is_transfer, self.seconds * RATE, 0.0)
        alone = np.where(graph.is_transfer, 0.0, costs.seconds)
        return Costs(alone, moved, ports, np.full(2 * graph.layout.pp, RATE))


RATE = 3.0
"""Bytes a second of a port."""


@pytest.mark.parametrize("seconds", [0.25, 1.0, 2.5])
@pytest.mark.parametrize("name", NAMES)
def test_transfers_share_ports_with_those_of_the_other_schedule(name, seconds):
    """Links that are idle, busy, and full."""
    model = Ports(seconds)
    saved = SavedTimeline(replace(simulate(graph_of(name), model), source=MEASURED))
    for other in NAMES:
        expected = simulate(graph_of(other), model).step_time
        replayed = saved.as_schedule(find_schedule(other)).timeline
        assert replayed.step_time == pytest.approx(expected, rel=0.02), other


def test_transfers_that_took_as_long_whatever_else_was_sent_share_nothing():
    model = AbstractCosts(transfer=2.5)
    saved = SavedTimeline(replace(simulate(graph_of("depth-first"), model), source=MEASURED))
    for other in NAMES:
        expected = simulate(graph_of(other), model).step_time
        replayed = saved.as_schedule(find_schedule(other)).timeline
        assert replayed.step_time == pytest.approx(expected, rel=0.02), other


def measured(timeline: Timeline, late: np.ndarray) -> Timeline:
    """The timeline as if it had run, each task so much later than it could."""
    seconds = timeline.duration + late
    ran = simulate(timeline.graph, type("", (), {"costs": lambda _, __: fixed_costs(seconds)})())
    return replace(ran, start=ran.start + late, source=MEASURED)


def test_passes_that_begin_late_do_so_in_another_order():
    timeline = simulate(graph_of("1f1b"), COSTS)
    late = np.where(timeline.graph.is_compute, 0.1, 0.0)
    saved = SavedTimeline(measured(timeline, late))
    assert saved.as_itself().timeline.step_time == pytest.approx(saved.timeline.step_time)
    other = graph_of("gpipe")
    expected = measured(simulate(other, COSTS), np.where(other.is_compute, 0.1, 0.0)).step_time
    replayed = saved.as_schedule(find_schedule("gpipe")).timeline
    assert replayed.step_time == pytest.approx(expected, rel=0.01)


def test_what_was_not_measured_is_said():
    """A timeline that stops before the update, as imported ones may."""
    saved = SavedTimeline(simulate(build_graph("1f1b", Layout(1, 4)), COSTS))
    costs = MeasuredElsewhere(saved.causes)
    assert costs.not_measured(graph_of("1f1b", 1, 4, 1)) == ["all-gather", "norm"]


def test_a_step_of_another_size_is_refused():
    saved = SavedTimeline(simulate(graph_of("1f1b"), COSTS))
    with pytest.raises(InvalidConfiguration, match="slices micro-batches"):
        saved.as_schedule(find_schedule("seq1f1b"))


def test_explain_asks_what_if(bfpp, answer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "--pp 4 --microbatches 8 --transfer 0.1 --reduce 0.4"
    bfpp(f"simulate 1f1b {words} --units-per-stage 2 --timeline step.json")
    asked = ["explain", "step.json", "--what-if", "breadth-first --loops 2", "--what-if", "1f1b"]
    looped, itself = answer(*asked)["what_if"]
    expected = answer(f"simulate breadth-first --loops 2 {words}")["step_time"]
    assert looped["case"] == "breadth-first --loops 2"
    assert looped["step_time"] == pytest.approx(expected)
    assert itself["difference"] == pytest.approx(0)
    code, out, _ = bfpp(*asked)
    assert code == 0
    assert "With breadth-first --loops 2: step time -14.71%" in out
    for case, reason in {
        "1f1b --pp 2": "pp is that of the timeline",
        "none": "none",
        "'": "quotation",
    }.items():
        code, _, err = bfpp("explain", "step.json", "--what-if", case)
        assert code == 2
        assert reason in err
    code, _, err = bfpp("explain 1f1b --pp 2 --microbatches 4 --what-if gpipe")
    assert code == 2
    assert "--against" in err
    assert Path("step.json").exists()

"""Timelines as costs, and who is slow in them; `bfpp explain` of a saved timeline."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.schedules import Communication, Layout, build_graph
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.measured.replay import AsItRan, paces
from bfpp.sim.costs.parameters import Scaled
from bfpp.sim.engines.compiled_engine import times
from bfpp.sim.engines.cost_model import fixed_costs
from bfpp.sim.engines.engines import simulate
from bfpp.traces.explain.causes import Causes
from bfpp.traces.explain.looks import SHARES, Cause, Share
from tests.helpers.measured import executed
from tests.helpers.strategies import graphs


@given(graphs(), st.integers(0, 9))
def test_a_replay_of_what_ran_never_ends_before_it_did(graph, seed):
    """Nor later, but for clocks that say that a task began before it could."""
    timeline = executed(graph, seed)
    causes = Causes(timeline)
    end = times(graph, AsItRan(causes).costs(graph))[1]
    assert (end >= timeline.end - timeline.first_start - 1e-9).all()
    late = timeline.start[graph.dependent] - timeline.end[graph.dependencies.member]
    if len(late) == 0 or late.min() >= 0:
        before = graph.predecessors
        behind = np.repeat(np.arange(len(graph)), np.diff(before.start))
        if (timeline.start[behind] >= timeline.end[before.member]).all():
            np.testing.assert_allclose(end, timeline.end - timeline.first_start, atol=1e-9)


def test_every_cause_is_in_one_part_of_the_step():
    found = [cause for causes in SHARES.values() for cause in causes]
    assert sorted(found) == sorted(Cause)
    assert {Share.COMPUTE, *SHARES} == set(Share)


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_straggler_is_found_with_what_it_costs(slow):
    graph = build_graph("1f1b", Layout(3, 6), Communication())
    even = AbstractCosts(transfer=0.25)
    step_time = simulate(graph, even).step_time
    timeline = simulate(graph, Scaled(even, f"stage.{slow}", 1.5))
    causes = Causes(timeline)
    for pace in paces(causes):
        is_slow = pace.rank == slow
        assert pace.excess == pytest.approx(0.5 if is_slow else 0)
        assert pace.gain == pytest.approx(timeline.step_time - step_time if is_slow else 0)
    assert sum(causes.shares.values()) == pytest.approx(timeline.step_time)


class Uneven:
    """Every second pass of rank 1 takes longer, and the others less."""

    def costs(self, graph):
        seconds = AbstractCosts().costs(graph).seconds.copy()
        own = graph.compute_tasks.of(1)
        seconds[own] *= np.where(graph.microbatch[own] % 2, 1.5, 0.5)
        return fixed_costs(seconds)


def test_a_rank_whose_passes_vary_is_no_straggler():
    """They take as long as the other rank's in sum, so nothing is to be gained from it."""
    timeline = simulate(build_graph("1f1b", Layout(2, 8), Communication()), Uneven())
    for pace in paces(Causes(timeline)):
        assert pace.excess == pytest.approx(0)
        assert pace.gain == pytest.approx(0)


def test_a_saved_timeline_is_explained(answer, bfpp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "1f1b --pp 3 --microbatches 6 --transfer 0.25"
    for name, more in (("fast", ""), ("slow", " --forward 2")):
        assert bfpp(f"simulate {words}{more} --timeline {name}.json.gz")[0] == 0
    predicted = answer(f"explain {words} --set transfer=x2")
    saved = answer("explain fast.json.gz --set transfer=x2 --against slow.json.gz")
    for name in ("step_time", "mean_rank", "shares", "ranks", "critical_path"):
        assert saved[name] == predicted[name]
    doubled, slower = saved["what_if"]
    assert doubled == predicted["what_if"][0]
    assert slower["case"] == "slow.json.gz"
    assert slower["step_time"] == answer(f"simulate {words} --forward 2")["step_time"]
    assert "Where the mean rank's time goes" in bfpp("explain fast.json.gz")[1]


REFUSED = {
    "explain step.json --loops 2": "--loops: a saved timeline is as it ran",
    "explain none.json": "SCHEDULE: none.json: No such file",
    "explain step.json --against gpipe": "--against: gpipe: No such file",
    "explain step.json --set forward=3": "--set: 'forward' is not a single number here",
    "explain step.json --set cats=x3": "--set: 'cats' is not a parameter",
    "explain graph.json": "SCHEDULE: is not a timeline",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_said_of_it_is_refused_in_a_line(bfpp, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    assert bfpp("simulate gpipe --pp 2 --timeline step.json --graph graph.json")[0] == 0
    code, _, err = bfpp(line)
    assert (code, err.count("\n")) == (2, 1)
    assert REFUSED[line] in err

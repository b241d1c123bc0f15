"""Schedules with backward passes in halves, against their closed forms and public schedulers.

Closed forms: Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024). `published_schedules.csv`
holds step times, in seconds per stage, of the orders that the authors' schedulers make, of that
paper and of "Pipeline Parallelism with Controllable Memory" (NeurIPS 2024): zb.py (zb-h1 with
memory of p micro-batches, zb-h2 of 2 p), zbv.py and zbv_greedy.py (v-half, v-min), all of
sail-sg/zero-bubble-pipeline-parallelism, replayed by a longest path.
"""

from __future__ import annotations

import csv

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bfpp.paper.studies.zero_bubble import Passes
from bfpp.schedules import InvalidConfiguration, Schedule, build_graph, find_schedule
from bfpp.schedules.graph.counts import peak_activations
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import simulate
from bfpp.traces.timeline.metrics import rank_metrics
from bfpp.traces.timeline.timeline import Timeline
from tests.helpers import GOLDEN

EXACT = settings(derandomize=True, deadline=None, max_examples=60)
FEW = settings(EXACT, max_examples=10)
PUBLISHED = GOLDEN / "published_schedules.csv"

ranks = st.integers(1, 8)
seconds = st.integers(1, 9)


def timeline_of(
    named: str | Schedule,
    ranks: int,
    microbatches: int,
    loops: int | None = None,
    **costs: float,
) -> Timeline:
    schedule = find_schedule(named) if isinstance(named, str) else named
    graph = build_graph(schedule, schedule.layout(ranks, microbatches, loops))
    return simulate(graph, AbstractCosts(**costs))


def longest_rank(timeline: Timeline) -> float:
    return max(rank.end - rank.start for rank in rank_metrics(timeline))


def most_activations(timeline: Timeline) -> float:
    return max(rank.peak_microbatches for rank in rank_metrics(timeline))


@st.composite
def halves(draw: st.DrawFn) -> dict[str, float]:
    """Costs whose weight half takes no longer than the input half or the forward pass."""
    forward, backward_input = draw(seconds), draw(seconds)
    weight = draw(st.integers(1, min(forward, backward_input)))
    return {"forward": forward, "backward_input": backward_input, "backward_weight": weight}


@EXACT
@given(ranks, st.integers(0, 12), halves())
def test_zb_h1(ranks: int, more: int, costs: dict[str, float]) -> None:
    microbatches = ranks + more
    timeline = timeline_of("zb-h1", ranks, microbatches, **costs)
    forward, back, weight = costs.values()
    bubble = (ranks - 1) * (forward + back - weight)
    assert timeline.step_time == microbatches * (forward + back + weight) + bubble
    assert most_activations(timeline) == ranks


@EXACT
@given(ranks, st.integers(0, 12), halves())
def test_zb_h2(ranks: int, more: int, costs: dict[str, float]) -> None:
    microbatches = 2 * ranks - 1 + more
    timeline = timeline_of("zb-h2", ranks, microbatches, **costs)
    forward, back, weight = costs.values()
    bubble = (ranks - 1) * (forward + back - 2 * weight)
    assert longest_rank(timeline) == microbatches * (forward + back + weight) + bubble
    assert most_activations(timeline) == 2 * ranks - 1


@EXACT
@given(ranks, st.integers(1, 3), st.integers(1, 4), halves())
def test_zb1p(ranks: int, rounds: int, loops: int, costs: dict[str, float]) -> None:
    """Seconds are per stage, so that a rank's are as many times as long as it has stages."""
    microbatches = ranks * rounds
    timeline = timeline_of("zb1p", ranks, microbatches, loops, **costs)
    forward, back, weight = costs.values()
    bubble = (ranks - 1) * (forward + back - weight)
    assert timeline.step_time == loops * microbatches * (forward + back + weight) + bubble
    assert most_activations(timeline) == ranks


loops, leads = st.integers(1, 4), st.integers(2, 4)


@FEW
@given(ranks, st.integers(0, 8), loops, leads, halves(), st.sampled_from([0, 0.25, 0.5]))
def test_breadth_first_in_halves(
    ranks: int, more: int, loops: int, lead: int, costs: dict[str, float], share: float
) -> None:
    """Seconds that each rank beyond the first adds to the step, and activations alive meanwhile."""
    microbatches = lead * (ranks - 1) + 1 + more
    transfer = share * min(costs["forward"], costs["backward_input"])
    passes = Passes(*costs.values(), transfer)
    compute = microbatches * loops * (passes.forward + passes.backward)
    schedule = find_schedule("zb-bf", lead=lead)
    for named, idle, live in (
        ("breadth-first", passes.idle_breadth_first, loops * microbatches),
        ("bf-split", passes.idle_split, loops * microbatches),
        (schedule, passes.idle_zero_bubble(lead), loops * microbatches - more),
    ):
        timeline = timeline_of(named, ranks, microbatches, loops, transfer=transfer, **costs)
        assert timeline.step_time == pytest.approx(compute + (ranks - 1) * idle)
        assert peak_activations(timeline.graph).max() == live


@FEW
@given(st.integers(2, 6), st.integers(0, 8), st.integers(2, 4), leads, halves())
def test_reductions_that_breadth_first_in_halves_hides(
    ranks: int, more: int, loops: int, lead: int, costs: dict[str, float]
) -> None:
    """Late weight halves shorten a step until reductions take that long, and no longer."""
    schedule = find_schedule("zb-bf", lead=lead)
    layout = schedule.layout(ranks, lead * (ranks - 1) + 1 + more, loops)
    longest = Passes(*costs.values()).hidden_reduction(layout, lead)

    def gain(reduction: float) -> float:
        split, late = (
            timeline_of(each, ranks, layout.microbatches, loops, reduce=reduction, **costs)
            for each in ("bf-split", schedule)
        )
        return split.step_time - late.step_time

    assert gain(0) > 0
    assert gain(longest) == pytest.approx(0)
    assert gain(0.9 * longest) > 0 > gain(1.1 * longest)


def test_a_lead_is_one_at_least() -> None:
    with pytest.raises(InvalidConfiguration, match="lead: must be at least 1, not 0"):
        find_schedule("zb-bf", lead=0)


@EXACT
@given(ranks, st.integers(0, 12), seconds)
def test_zb_v_where_all_passes_are_equal(ranks: int, more: int, each: int) -> None:
    microbatches = 2 * ranks - 1 + more
    costs = {"forward": each, "backward_input": each, "backward_weight": each}
    timeline = timeline_of("zb-v", ranks, microbatches, **costs)
    assert timeline.step_time == each * (6 * microbatches + ranks - 1)
    assert longest_rank(timeline) == each * 6 * microbatches
    assert most_activations(timeline) == ranks


@FEW
@given(st.integers(2, 16), st.integers(0, 8))
def test_activations_of_the_controllable_memory_schedules(ranks: int, more: int) -> None:
    microbatches = 2 * ranks + more
    assert most_activations(timeline_of("v-half", ranks, microbatches)) <= (ranks + 2) // 2
    assert most_activations(timeline_of("v-min", ranks, microbatches)) <= (ranks + 4) // 3


SLOWER = {"zb-h1": 0.0, "zb-h2": 8e-3, "zb-v": 3e-3, "v-half": 0.0, "v-min": 0.0}
"""By how much of their step our orders may be slower; those that are made for the costs may."""


def test_schedules_are_as_fast_as_their_authors() -> None:
    """With no more activations, and as many on a V."""
    with PUBLISHED.open() as file:
        for row in csv.DictReader(file):
            name, ranks, microbatches = row["schedule"], int(row["ranks"]), int(row["microbatches"])
            timeline = timeline_of(
                name,
                ranks,
                microbatches,
                forward=float(row["forward"]),
                backward_input=float(row["input"]),
                backward_weight=float(row["weight"]),
                transfer=float(row["transfer"]),
            )
            live, expected = most_activations(timeline), float(row["peak_microbatches"])
            assert live == expected or (name == "zb-h2" and live < expected)
            assert timeline.step_time <= float(row["step_time"]) * (1 + SLOWER[name])


@EXACT
@given(st.sampled_from(["zb-v", "v-half", "v-min"]), ranks, st.integers(1, 20), halves())
def test_no_rank_holds_more_than_1f1b(
    name: str, ranks: int, microbatches: int, costs: dict[str, float]
) -> None:
    assume(ranks > 1)
    assert most_activations(timeline_of(name, ranks, microbatches, **costs)) <= ranks


@pytest.mark.parametrize("name", ["zb-v", "v-half", "v-min"])
def test_a_v_has_two_stages_a_rank(name: str) -> None:
    schedule = find_schedule(name)
    assert schedule.layout(3, 4).placement == (0, 1, 2, 2, 1, 0)
    with pytest.raises(InvalidConfiguration, match=f"loops: {name} is not looped: 2 stages a rank"):
        schedule.layout(3, 4, 4)
    with pytest.raises(
        InvalidConfiguration, match=f"3 parts of a rank are not a multiple of {name}'s"
    ):
        schedule.divided(3, 4, 3)


def test_zb1p_refuses_sequences_that_are_not_equal() -> None:
    with pytest.raises(InvalidConfiguration, match="2 equal sequences of at least 3, and 7 is not"):
        find_schedule("zb1p").orders(find_schedule("zb1p").layout(3, 7, 2))

"""Fused forward-backward blocks: what they take, when they begin and end, and DualPipe's numbers.

`REPLAYED` holds step times, the most idle seconds of a rank and the most activations of the order
of DeepSeek's public DualPipe (deepseek-ai/DualPipe), replayed by a longest path with each
overlapped pair as one task.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import (
    Communication,
    Degrees,
    InvalidConfiguration,
    Layout,
    Sharding,
    TaskGraph,
    build_graph,
    find_schedule,
    lower,
)
from bfpp.schedules.columns import NONE
from bfpp.schedules.formats.torch_csv import read_orders
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines.engines import simulate
from bfpp.sim.memory.device_memory import rank_memory
from bfpp.sim.models.model import load_model
from bfpp.traces.explain.causes import Causes
from bfpp.traces.explain.looks import Cause
from bfpp.traces.timeline.metrics import rank_metrics
from bfpp.traces.timeline.timeline import Timeline
from tests.helpers.strategies import order_graphs

EXACT = settings(derandomize=True, deadline=None, max_examples=40)

seconds = st.integers(1, 9)


def timeline_of(name: str, ranks: int, microbatches: int, **values: float | bool) -> Timeline:
    own = {key: values.pop(key) for key in list(values) if key == "fused_blocks"}
    schedule = find_schedule(name, **own)
    graph = build_graph(schedule, schedule.layout(ranks, microbatches))
    return simulate(graph, AbstractCosts(**values))


def most_idle(timeline: Timeline) -> float:
    return max(rank.idle for rank in rank_metrics(timeline))


def most_activations(timeline: Timeline) -> float:
    return max(rank.peak_microbatches for rank in rank_metrics(timeline))


# Blocks


def blocks(graph: TaskGraph) -> tuple[np.ndarray, np.ndarray]:
    """The first and the second task of each block."""
    second = np.flatnonzero((graph.block != NONE) & (graph.block != np.arange(len(graph))))
    return graph.block[second], second


@EXACT
@given(order_graphs(), seconds, seconds, seconds)
def test_a_block_begins_and_ends_as_one(
    graph: TaskGraph, forward: int, backward: int, both: int
) -> None:
    """Whatever either of its passes needs is there when it begins; nobody has it any sooner."""
    costs = AbstractCosts(forward, backward, transfer=0.5, gather=1, forward_backward=both)
    timeline = simulate(graph, costs)
    first, second = blocks(graph)
    assert timeline.end[first] == pytest.approx(timeline.start[second])
    assert timeline.end[second] - timeline.start[first] == pytest.approx(float(both))
    assert np.diff(graph.dependencies.start)[second].sum() == 0
    assert not np.isin(graph.dependencies.member, first).any()


ORDERS = "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n"
IN_TURN = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


def test_passes_in_turn_hand_on_sooner() -> None:
    """Rank 0's block waits for the gradient of the first micro-batch, and rank 1 for the block."""
    graphs = [lower(read_orders(text), Layout(2, 2), Communication()) for text in (ORDERS, IN_TURN)]
    assert [simulate(graph, AbstractCosts()).step_time for graph in graphs] == [12, 9]


def test_units_of_a_block_are_paired() -> None:
    """A forward and a backward layer at a time; what is left of the longer stage runs alone."""
    (order,) = read_orders("0F0,1F0,0F1,(1F1;1B0)OVERLAP_F_B,0B0,1B1,0B1")
    graph = lower([order], Layout(1, 2, placement=(0, 0), units_per_stage=(1, 3)), Communication())
    first, second = blocks(graph)
    assert graph.unit[first].tolist() == [1, 2, 3]
    assert graph.unit[second].tolist() == [3, 2, 1]
    (order,) = read_orders("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1")
    graph = lower([order], Layout(1, 2, placement=(0, 0), units_per_stage=(1, 3)), Communication())
    assert [graph.unit[task].tolist() for task in blocks(graph)] == [[0], [3]]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0F0,(0F1;0F2)OVERLAP_F_B,0B0,0B1,0B2", "a forward and a whole backward pass"),
        ("0F0,0F1,(0I0;0F2)OVERLAP_F_B,0W0,0B1,0B2", "a forward and a whole backward pass"),
        ("0F0,0F1,(0F2;0B2)OVERLAP_F_B,0B0,0B1", "stage 0, micro-batch 2 cannot be one block"),
    ],
)
def test_what_cannot_be_a_block_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidConfiguration, match=reason):
        lower(read_orders(text), Layout(1, 3), Communication())


def test_shorter_blocks_are_no_imbalance_between_stages() -> None:
    timeline = timeline_of("dualpipe", 4, 8, forward_backward=2.4)
    assert all(idle[Cause.IMBALANCE] == 0 for idle in Causes(timeline).idle)


def test_both_passes_of_a_block_are_under_way_in_memory() -> None:
    costs = PhysicalCosts(load_model("bert-6.6b"), load_cluster("dgx1-v100"), Degrees(tp=8))
    transient = []
    for orders in (ORDERS, IN_TURN):
        graph = lower(read_orders(orders), Layout(2, 2), Communication())
        transient.append(rank_memory(simulate(graph, costs), costs, 0).transient)
    assert transient[0] == 2 * transient[1] > 0


def test_commands_files_and_experiments_say_blocks(bfpp, answer, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = "--pp 4 --microbatches 8"
    costs = "--backward-input 1 --backward-weight 1 --forward-backward 2.4"
    fused = answer(f"simulate dualpipe {words} {costs}")
    assert fused["step_time"] == pytest.approx(23.6)
    in_turn = answer(f"simulate dualpipe {words} {costs} --no-fused-blocks")
    assert in_turn["step_time"] == 25
    Path("orders.csv").write_text(bfpp(f"orders dualpipe {words}")[1])
    assert "(0F3;3B5)OVERLAP_F_B" in Path("orders.csv").read_text()
    for more, expected in (("", fused), (" --no-fused-blocks", in_turn)):
        found = answer(f"simulate orders.csv {costs}{more}")
        assert {**found, "schedule": "dualpipe"} == expected
    assert "OVERLAP" not in bfpp("orders orders.csv --no-fused-blocks")[1]
    assert bfpp(f"experiment dualpipe {words} {costs} --no-fused-blocks --out e.toml")[0] == 0
    assert "fused_blocks = false" in Path("e.toml").read_text()
    assert answer("simulate e.toml") == in_turn
    code, _, error = bfpp(f"simulate 1f1b {words} --no-fused-blocks")
    assert code == 2
    assert "--fused-blocks: 1f1b has no such parameter" in error


# DualPipe and DualPipeV

REPLAYED = [
    # ranks, micro-batches, F, I, W, F&B, step time, idle, activations
    (4, 8, 1, 1, 1, 2.4, 23.6, 1.4, 5),
    (4, 8, 1, 1, 1, 3, 26, 2, 5),
    (4, 12, 1, 1, 1, 3, 38, 2, 5),
    (4, 16, 1, 1, 1, 2.4, 42.8, 1.4, 5),
    (8, 20, 1, 1, 1, 2.4, 57.6, 4.2, 9),
    (8, 20, 1, 1, 1, 3, 66, 6, 9),
    (8, 32, 1, 1, 1, 2.4, 86.4, 4.2, 9),
    (16, 32, 1, 1, 1, 2.4, 96.8, 9.8, 17),
    (16, 36, 1, 1, 1, 2.4, 106.4, 9.8, 17),
    (16, 64, 1, 1, 1, 3, 206, 14, 17),
    (4, 8, 1, 1.2, 0.8, 2.7, 25.2, 2.1, 5),
    (8, 16, 1, 1.2, 0.8, 2.7, 52.2, 6.3, 9),
    (8, 20, 1, 1.2, 0.8, 2.7, 63, 6.3, 9),
    (16, 32, 1, 1.2, 0.8, 2.7, 106.6, 15.1, 17),
    (16, 64, 1, 1.2, 0.8, 2.7, 193, 15.1, 17),
]


@pytest.mark.parametrize("row", REPLAYED, ids=str)
def test_dualpipe_is_what_others_replayed(row: tuple[float, ...]) -> None:
    ranks, microbatches, forward, back, weight, both, step_time, idle, activations = row
    timeline = timeline_of(
        "dualpipe",
        int(ranks),
        int(microbatches),
        forward=forward,
        backward_input=back,
        backward_weight=weight,
        forward_backward=both,
    )
    assert timeline.step_time == pytest.approx(step_time)
    assert most_idle(timeline) == pytest.approx(idle)
    assert most_activations(timeline) == activations


@st.composite
def block_costs(draw: st.DrawFn) -> dict[str, float]:
    """Equal passes and halves; a block takes from as long as a backward pass to all three."""
    each = draw(seconds)
    names = ("forward", "backward_input", "backward_weight")
    both = draw(st.floats(2 * each, 3 * each))
    return {**dict.fromkeys(names, float(each)), "forward_backward": both}


@EXACT
@given(st.sampled_from([2, 4, 6, 8]), st.integers(0, 5), block_costs())
def test_the_bubble_of_dualpipe(ranks: int, more: int, costs: dict[str, float]) -> None:
    """(PP/2 - 1) (F&B + B - 3 W) on the rank that is idle the longest, where F = I = W."""
    timeline = timeline_of("dualpipe", ranks, 2 * (ranks + more), **costs)
    bubble = costs["forward_backward"] - costs["backward_weight"]
    assert most_idle(timeline) == pytest.approx((ranks / 2 - 1) * bubble)
    assert most_activations(timeline) == ranks + 1


@EXACT
@given(st.integers(1, 6), st.integers(0, 5), block_costs())
def test_the_bubble_of_dualpipe_v(ranks: int, more: int, costs: dict[str, float]) -> None:
    """(p - 1) (F&B + B - 3 W) in seconds of a stage, where F = I = W; and p + 1/2 micro-batches."""
    timeline = timeline_of("dualpipe-v", ranks, 2 * ranks + more, **costs)
    bubble = costs["forward_backward"] - costs["backward_weight"]
    assert most_idle(timeline) == pytest.approx((ranks - 1) * bubble)
    assert most_activations(timeline) == ranks + 0.5


@EXACT
@given(st.integers(1, 6), st.integers(0, 5), seconds)
def test_without_blocks_dualpipe_v_has_less_of_a_bubble(ranks: int, more: int, each: int) -> None:
    """m (F + I + W) + (p - 1) F / 2 in seconds of a rank, where all three are equal."""
    microbatches = 2 * ranks + more
    timeline = timeline_of(
        "dualpipe-v",
        ranks,
        microbatches,
        forward=each,
        backward_input=each,
        backward_weight=each,
        fused_blocks=False,
    )
    assert timeline.step_time == each * (6 * microbatches + ranks - 1)


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "reason"),
    [
        ("dualpipe", 3, 8, "pp: dualpipe needs an even number of ranks, not 3"),
        ("dualpipe", 4, 9, "microbatches: dualpipe needs an even number of at least 8 on 4 ranks"),
        ("dualpipe", 4, 6, "microbatches: dualpipe needs an even number of at least 8 on 4 ranks"),
        ("dualpipe-v", 4, 7, "microbatches: dualpipe-v needs at least 8 on 4 ranks, not 7"),
    ],
)
def test_what_dualpipe_cannot_run_is_refused(
    name: str, ranks: int, microbatches: int, reason: str
) -> None:
    schedule = find_schedule(name)
    with pytest.raises(InvalidConfiguration, match=reason):
        schedule.require(schedule.layout(ranks, microbatches))


@pytest.mark.parametrize("sharding", Sharding)
def test_dualpipe_v_may_be_sharded(sharding: Sharding) -> None:
    schedule = find_schedule("dualpipe-v")
    graph = build_graph(schedule, schedule.layout(2, 4, units_per_stage=2), Communication(sharding))
    assert (graph.block != NONE).any()

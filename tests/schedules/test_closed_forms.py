"""Step times and live activations against the paper's closed forms."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import Communication, Layout, Sharding, build_graph, find_schedule
from bfpp.schedules.graph.counts import (
    data_network,
    peak_activations,
    peak_microbatches,
    reduction_window,
    sends_per_microbatch,
    weight_buffers,
)
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import simulate
from bfpp.traces.timeline.metrics import bubble, compute_time

EXACT = settings(derandomize=True, deadline=None, max_examples=60)
NAMES = ("gpipe", "1f1b", "depth-first", "breadth-first")

ranks = st.integers(1, 6)
rounds = st.integers(1, 4)
stages = st.integers(1, 4)


def graph_of(name, pp, microbatches, stages_per_rank, **communication):
    layout = find_schedule(name).divided(pp, microbatches, stages_per_rank)
    return build_graph(name, layout, Communication(**communication))


def timeline_of(name, pp, microbatches, stages_per_rank, costs=None, **communication):
    graph = graph_of(name, pp, microbatches, stages_per_rank, **communication)
    return simulate(graph, costs or AbstractCosts())


@pytest.mark.parametrize("name", NAMES)
@EXACT
@given(ranks, rounds, stages, st.integers(1, 5), st.integers(1, 9), st.sampled_from(Sharding))
def test_bubble_is_the_papers(name, pp, rounds, stages, forward, backward, sharding):
    """Whole seconds, so that the sums are exact: step time x loops x micro-batches."""
    microbatches = pp * rounds
    costs = AbstractCosts(forward=forward, backward=backward)
    timeline = timeline_of(name, pp, microbatches, stages, costs, sharding=sharding)
    loops = timeline.graph.layout.loops
    compute = microbatches * stages * (forward + backward)
    assert compute_time(timeline).tolist() == [compute] * pp
    assert timeline.step_time * microbatches * loops == compute * (microbatches * loops + pp - 1)
    assert bubble(timeline) == pytest.approx((pp - 1) / (microbatches * loops), abs=1e-12)


@EXACT
@given(ranks, st.integers(1, 12), stages)
def test_1f1b_takes_as_long_as_gpipe_for_any_number_of_microbatches(pp, microbatches, stages):
    first, second = (timeline_of(name, pp, microbatches, stages) for name in ("gpipe", "1f1b"))
    assert first.step_time == second.step_time


@EXACT
@given(ranks, st.integers(1, 12), stages)
def test_peak_microbatches_of_non_looped_schedules(pp, microbatches, stages):
    gpipe = peak_activations(graph_of("gpipe", pp, microbatches, stages))
    assert gpipe.tolist() == [microbatches * stages] * pp
    one_forward = peak_activations(graph_of("1f1b", pp, microbatches, stages))
    assert one_forward.tolist() == [min(pp - rank, microbatches) * stages for rank in range(pp)]


def test_peak_microbatches_of_stages_that_differ():
    """In shares of their least common multiple, 77,597,520: all together more than 32 bits hold."""
    layout = Layout(1, 8, 7, units_per_stage=[7, 11, 13, 15, 16, 17, 19])
    assert peak_microbatches(build_graph("breadth-first", layout)) == pytest.approx(8)


@EXACT
@given(ranks, rounds, stages)
def test_peak_checkpoints_of_looped_schedules(pp, rounds, stages):
    """The memory appendix: N_mb N_layers / N_PP, capped for depth-first to N_layers + N_PP - 1."""
    microbatches = pp * rounds
    breadth = peak_activations(graph_of("breadth-first", pp, microbatches, stages))
    assert breadth.tolist() == [microbatches * stages] * pp
    depth = peak_activations(graph_of("depth-first", pp, microbatches, stages))
    assert depth.max() == min(microbatches * stages, pp * stages + pp - 1)


@EXACT
@given(st.integers(1, 5), rounds, stages)
def test_gathers_and_reductions_in_models(pp, rounds, stages):
    """Once a step unsharded; per sequence and pass, or per micro-batch, when fully sharded."""
    microbatches, share = pp * rounds, 1 / pp
    repeats = {
        "breadth-first": 1,
        "depth-first": rounds,
        "gpipe": microbatches if stages > 1 else 1,
        "1f1b": microbatches if stages > 1 else 1,
    }
    for name, repeated in repeats.items():
        for sharding in (Sharding.NONE, Sharding.PARTIAL):
            graph = graph_of(name, pp, microbatches, stages, sharding=sharding)
            assert data_network(graph).tolist() == pytest.approx([2 * share] * pp)
        full = graph_of(name, pp, microbatches, stages, sharding=Sharding.FULL)
        if name != "depth-first" or stages > 1:
            assert data_network(full).tolist() == pytest.approx([3 * repeated * share] * pp)
        assert weight_buffers(full).max() <= (4 if name == "depth-first" else 2)


@EXACT
@given(st.integers(1, 5), rounds, stages)
def test_overlap_windows_of_the_reductions(pp, rounds, stages):
    microbatches = pp * rounds
    window = 1 - 1 / stages
    expected = {
        "gpipe": window / microbatches,
        "1f1b": window / microbatches,
        "depth-first": window * pp / microbatches,
        "breadth-first": window,
    }
    for name, share in expected.items():
        counted = reduction_window(graph_of(name, pp, microbatches, stages))
        assert counted.tolist() == pytest.approx([share] * pp)


@pytest.mark.parametrize("name", NAMES)
def test_transfers_per_microbatch(name):
    graph = graph_of(name, 4, 8, 3)
    loops = graph.layout.loops
    assert sends_per_microbatch(graph).tolist() == [loops, loops, loops, loops - 1]


def test_slow_transfers_cost_depth_first_more_and_more_with_loops():
    """The paper's claim on network overlap, with transfers of half a forward pass."""

    def step_time(name, loops, transfer):
        costs = AbstractCosts(forward=1 / loops, backward=2 / loops, transfer=transfer / loops)
        return timeline_of(name, 4, 8, loops, costs).step_time

    losses = {}
    for name in ("depth-first", "breadth-first"):
        losses[name] = [step_time(name, k, 0.5) / step_time(name, k, 0) - 1 for k in (1, 2, 4, 8)]
    for depth, breadth in zip(losses["depth-first"][1:], losses["breadth-first"][1:], strict=True):
        assert depth > breadth
    assert losses["depth-first"] == sorted(losses["depth-first"])
    assert losses["depth-first"][-1] > 4 * losses["breadth-first"][-1]


@EXACT
@given(
    st.integers(2, 6),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
)
def test_what_transfers_cost_depth_first(pp, loops, full, more, fewer, transfer):
    """The hybrid that the paper conjectures loses in its first sequence and its last alone."""
    sequence, forward, backward = pp + more, 1.0, 2.0
    last = max(pp, sequence - fewer)
    layout = Layout(pp, full * sequence + last, loops)
    graph = build_graph(find_schedule("depth-first", sequence=sequence), layout)
    taken = simulate(graph, AbstractCosts(forward, backward, transfer=transfer)).step_time
    compute = layout.microbatches * loops * (forward + backward)
    fill = (pp - 1) * (forward + backward + 2 * transfer)
    lost = max(0, pp * (forward + transfer) - sequence * forward)
    lost += max(0, pp * (backward + transfer) - last * backward)
    assert taken == pytest.approx(compute + fill + (loops - 1) * lost)

"""Offloaded activations: what leaves and comes back, what that takes, and what memory is left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bfpp.api.running.jobs import require_runnable
from bfpp.options.experiment_file import read_experiment
from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    Layout,
    Operation,
    TaskGraph,
    build_graph,
    find_schedule,
)
from bfpp.schedules.columns import NONE
from bfpp.schedules.operations.streams import FROM_HOST, TO_HOST
from bfpp.schedules.settings.offloading import MODULES
from bfpp.schedules.validity import violations
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.software_profiles import CURRENT
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.costs.parameters import Change, changed
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.units.activations import activations_of_units
from bfpp.sim.costs.units.offloading import least_passes, offloaded_bytes
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.memory.device_memory import memories_of, rank_memories
from bfpp.sim.memory.host_memory import host_memory, node_memory
from bfpp.sim.memory.memory_over_time import memory_over_time
from bfpp.sim.models.model import load_model
from bfpp.sim.search.decision import kind_of
from bfpp.sim.search.enumeration import configurations
from bfpp.sim.search.evaluation import evaluate
from bfpp.sim.search.outcomes import outcome_of
from bfpp.sim.search.problem import Problem
from bfpp.traces.explain.causes import Causes
from bfpp.traces.explain.looks import Cause
from bfpp.traces.formats.timeline_json import read_timeline, write_timeline
from bfpp.traces.timeline.memory_curves import MemoryCurve, curves
from bfpp.traces.timeline.memory_record import PARTS
from bfpp.traces.timeline.timeline import Timeline
from tests.sim.memory.test_memory_over_time import curves_of

SCHEDULES = (
    "gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1", "zb-v", "seq1f1b", "dualpipe",
)  # fmt: skip
USUAL = load_cluster("dgx-h100")
H100 = replace(USUAL, device=replace(USUAL.device, host_link=None, host_memory_bandwidth=None))
"""Whose copies take the seconds that they take alone."""

SAVED = "saved activations"


def cluster(host_bandwidth: float):
    return replace(H100, device=replace(H100.device, host_bandwidth=host_bandwidth))


def experiment(schedule: str, host_bandwidth: float = 55e9, **values: object) -> Experiment:
    rule = find_schedule(schedule)
    loops = {"loops": 2} if rule.looped else {}
    of_model = {"model": "llama3-8b", "seq_length": 4096, "implementation": "current"}
    given = {"pp": 4, "tp": 8, "microbatches": 8, "offload": "all", **loops, **of_model, **values}
    return Experiment(schedule, cluster=cluster(host_bandwidth), **given)


def simulated(chosen: Experiment) -> tuple[Timeline, PhysicalCosts]:
    physical = chosen.require_physical()
    return simulate(chosen.graph(), physical), physical


def tasks_of(graph: TaskGraph, operation: Operation) -> np.ndarray:
    return np.flatnonzero(graph.operation == operation)


@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_peak_is_what_the_order_of_passes_leaves_on_a_device(schedule, ahead):
    """Two ways to the bound: when memory can be given to others, and what copies may be ahead."""
    chosen = experiment(schedule, offload_ahead=ahead)
    graph, physical = chosen.graph(), chosen.require_physical()
    peaks = rank_memories(graph, physical)
    for held, peak in zip(memory_over_time(graph, physical), peaks, strict=True):
        passing = held.on_device(graph).only([PARTS["saved"], PARTS["transient"]])
        assert passing.total.max() == pytest.approx(peak.saved + peak.transient)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_latency_steps_take_as_long_and_less_is_on_the_device(schedule):
    """Activations on the device and on the host are always those kept without offload."""
    kept, physical = simulated(experiment(schedule, offload="off"))
    away, _ = simulated(experiment(schedule, 1e40))
    assert len(tasks_of(away.graph, Operation.OFFLOAD)) > 0
    assert violations(away.graph) == []
    assert away.step_time == pytest.approx(kept.step_time, rel=1e-12)
    for whole, left in zip(curves_of(kept, physical), curves_of(away, physical), strict=True):
        moments = (left.time[1:] + left.time[:-1]) / 2
        moments = moments[np.diff(left.time) > 1e-9]
        on_host = held(whole, moments) - held(left, moments)
        assert on_host.min() >= -1e-9
        assert on_host.max() <= held(whole, moments).max()


def held(curve: MemoryCurve, moments: np.ndarray) -> np.ndarray:
    part: np.ndarray = curve.parts[SAVED][np.searchsorted(curve.time, moments, side="right") - 1]
    return part


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_however_slow_copies_are_they_end_while_their_memory_is_held_and_its_peak_is_the_same(
    schedule,
):
    fast, slow = (simulated(experiment(schedule, bandwidth))[0] for bandwidth in (55e9, 1e9))
    assert slow.step_time > 1.2 * fast.step_time
    _, physical = simulated(experiment(schedule))
    peaks = memories_of(slow.graph, physical)
    for timeline in (fast, slow):
        found = timeline.graph.absences
        gone = found.leaves != NONE
        assert gone.any()
        assert (timeline.end[found.offload] <= timeline.start[found.leaves])[gone].all()
        assert (timeline.start[found.reload] >= timeline.end[found.returns])[gone].all()
        for curve in curves_of(timeline, physical):
            assert curve.total.max() == pytest.approx(peaks.of(curve.rank).total_gb)


@pytest.mark.parametrize(("ahead", "alive"), [(1, 4), (2, 6), (3, 8)])
def test_gpipe_keeps_what_its_copies_hold(ahead: int, alive: int):
    """Before the first backward pass begins: the last n + 1 have not left, n + 1 came back."""
    chosen = experiment("gpipe", pp=1, tp=4, microbatches=12, units_per_stage=1, layers=4)
    chosen = chosen.changed(offload_ahead=ahead)
    graph, physical = chosen.graph(), chosen.require_physical()
    saved = activations_of_units(physical, graph.layout).saved.sum()
    assert memories_of(graph, physical).fullest.saved == pytest.approx(alive * saved)
    assert host_memory(graph, physical) == pytest.approx([12 * saved])
    assert node_memory(graph, physical) == pytest.approx(4 * 12 * saved)
    unchanged = chosen.changed(offload="off").graph()
    assert memories_of(unchanged, physical).fullest.saved == pytest.approx(12 * saved)


def test_slow_copies_are_the_chain_that_the_step_takes():
    """GPipe on one rank: out with all micro-batches but two, and back with all, at a copy each.

    Forward passes wait from the third on for a copy of the one before the last. The backward
    passes' chain begins when the first copy out has ended, and the last to leave comes back last.
    """
    graph = build_graph("gpipe", Layout(1, 6), Communication(offload=1))
    slow = simulate(graph, AbstractCosts(1, 2, host_copy=10))
    out, back = (tasks_of(graph, each) for each in (Operation.OFFLOAD, Operation.RELOAD))
    assert slow.start[out].tolist() == [1, 11, 21, 31, 41, 51]
    last_pass = slow.end[graph.compute_tasks.member[-1]]
    assert last_pass == slow.end[back[-1]] + 2
    assert slow.step_time == pytest.approx(slow.start[back[0]] + 6 * 10 + 2)
    assert Causes(slow).idle[0][Cause.HOST] == pytest.approx(slow.step_time - 6 * 3)


def test_copies_run_on_lanes_of_their_own_one_backward_pass_ahead():
    graph = build_graph("gpipe", Layout(2, 6), Communication(offload=1))
    copying = {lane.stream for lane in graph.lanes if lane.stream in (TO_HOST, FROM_HOST)}
    assert copying == {TO_HOST, FROM_HOST}
    timeline = simulate(graph, AbstractCosts(1, 2, host_copy=0.5))
    for rank in range(2):
        steps = graph.compute_tasks.of(rank)
        backwards = steps[graph.operation[steps] == Operation.BACKWARD]
        reloads = tasks_of(graph, Operation.RELOAD)
        reloads = reloads[graph.rank[reloads] == rank]
        assert graph.microbatch[reloads].tolist() == graph.microbatch[backwards].tolist()
        # With the backward pass before, which may begin when the step before that has ended.
        ready = timeline.end[steps[np.flatnonzero(np.isin(steps, backwards[:-1])) - 1]]
        assert (timeline.start[reloads[1:]] >= ready).all()


def test_what_is_needed_at_once_stays():
    """The last rank of 1F1B runs each micro-batch back at once; those before have more between."""
    graph = build_graph("1f1b", Layout(4, 12), Communication(offload=1))
    offloaded = np.bincount(graph.rank[tasks_of(graph, Operation.OFFLOAD)], minlength=4)
    assert offloaded[3] == 0
    assert (np.diff(offloaded) <= 0).all()
    assert offloaded[0] > 0
    fewer = build_graph("1f1b", Layout(4, 12), Communication(offload=5))
    later = np.bincount(fewer.rank[tasks_of(fewer, Operation.OFFLOAD)], minlength=4)
    assert (later <= offloaded).all()
    assert later.sum() < offloaded.sum()


def test_selective_offloads_what_lives_longer_than_its_copies_take():
    chosen = experiment("interleaved", 20e9, pp=4, microbatches=8, offload="selective")
    least = chosen.communication.offload
    physical = chosen.require_physical()
    units = physical.unit_seconds(chosen.configuration.layout)
    mean = (units.forward + units.backward_input + units.backward_weight).mean() / 2
    copies = 2 * offloaded_bytes(physical, chosen.configuration.layout).max() / 20e9
    assert (least - 1) * mean < copies <= least * mean
    timeline, _ = simulated(chosen)
    every, _ = simulated(chosen.changed(offload="all"))
    assert timeline.step_time <= every.step_time * (1 + 1e-9)


def test_a_share_moves_as_much_less():
    whole, half = (experiment("1f1b", offload_share=share) for share in (1.0, 0.5))
    seconds = [each.require_physical().costs(each.graph()).seconds for each in (whole, half)]
    copies = tasks_of(whole.graph(), Operation.RELOAD)
    assert seconds[1][copies] == pytest.approx(seconds[0][copies] / 2)
    pinned = [host_memory(each.graph(), each.require_physical()) for each in (whole, half)]
    assert pinned[1] == pytest.approx(pinned[0] / 2)


def test_of_modules_their_inputs_are_moved():
    """By Megatron-LM's names: queries, keys and values; the context; what norms take."""
    whole = experiment("1f1b", layers=8, units_per_stage=2, cp=1)
    physical, layout = whole.require_physical(), whole.configuration.layout
    model, execution = physical.model, physical.execution

    def moved(*modules: str) -> float:
        chosen = whole.changed(offload_modules=",".join(modules)).require_physical()
        sizes = offloaded_bytes(chosen, layout)
        assert sizes == pytest.approx(np.full(layout.units, sizes[0]))  # nothing of the ends
        return sizes[0]

    token = 2 * execution.tokens / 8
    heads = model.query_width + model.key_width + model.value_width
    norms, statistics = token * model.hidden, 4 * execution.tokens / 8
    assert moved("core_attn") == pytest.approx(
        token * heads + 4 * execution.tokens * model.heads / 8
    )
    assert moved("attn_proj") == token * model.context_width
    assert moved("qkv_linear") == norms
    assert moved("attn_norm") == moved("mlp_norm") == norms + statistics
    dense = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm")
    assert moved(*dense) == pytest.approx(sum(map(moved, dense)))
    assert moved(*dense) < offloaded_bytes(physical, layout)[1]
    half = whole.changed(offload_modules="core_attn", offload_share=0.5)
    assert offloaded_bytes(half.require_physical(), layout)[0] == moved("core_attn") / 2


@pytest.mark.parametrize("recompute", ["none", "selective", "moe_act", "full"])
def test_no_more_is_moved_of_modules_than_is_kept(recompute):
    whole = experiment(
        "1f1b", model="gpt-oss-120b", layers=4, tp=1, ep=4, dp=4, recompute=recompute
    )
    some = whole.changed(offload_modules=",".join(MODULES))
    sizes = [
        offloaded_bytes(each.require_physical(), each.configuration.layout)
        for each in (some, whole)
    ]
    assert (sizes[0] > 0).all()
    assert (sizes[0] <= sizes[1]).all()
    graph, physical = some.graph(), some.require_physical()
    for held, peak in zip(
        memory_over_time(graph, physical), rank_memories(graph, physical), strict=True
    ):
        passing = held.on_device(graph).only([PARTS["saved"], PARTS["transient"]])
        assert passing.total.max() == pytest.approx(peak.saved + peak.transient)


def test_a_faster_link_is_a_what_if():
    chosen = experiment("1f1b", 5e9)
    faster = changed(chosen.require_physical(), Change("cluster.device.host_bandwidth", 4.0, True))
    steps = [simulate(chosen.graph(), costs).step_time for costs in (chosen.costs, faster)]
    assert steps[1] < steps[0]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"offload": "some"}, "'some' is not one of off, all, selective, or a number"),
        ({"offload_share": 1.5}, "must be more than 0 and at most 1"),
        ({"offload_share": 0.0}, "must be more than 0 and at most 1"),
        ({"offload_modules": "core_atn"}, "'core_atn' is not one of .* did you mean 'core_attn'"),
        ({"offload_modules": "moe_act"}, "llama3-8b has no moe_act"),
        ({"offload": "off", "offload_share": 0.5}, "offload_share: needs --offload"),
        ({"offload": "off", "offload_modules": "core_attn"}, "offload_modules: needs --offload"),
    ],
)
def test_what_cannot_be_is_refused(values, reason):
    with pytest.raises(InvalidConfiguration, match=reason):
        simulated(experiment("1f1b", **values))


def test_a_run_moves_all_that_a_pass_saves():
    with pytest.raises(InvalidConfiguration, match="offload_modules: can be simulated only"):
        require_runnable(experiment("1f1b", offload_modules="core_attn"))


def test_a_search_for_what_is_not_offloaded_says_so_and_its_best_is_an_experiment(bfpp, tmp_path):
    given = "--model gpt-1.2b --cluster dgx-h100 --implementation current --gpus 4"
    given = f"search {given} --batch 8 --schedule 1f1b --workers 1 --fix offload-share=0.5"
    code, _, error = bfpp(*given.split())
    assert code == 2
    assert "--offload-share: needs --offload" in error
    best = tmp_path / "best.toml"
    code, _, _ = bfpp(*given.split(), "--offload", "off", "all", "--top", "1", "--best", str(best))
    assert code == 0
    found = read_experiment(str(best))
    assert (found.offload == 0) == (found.offload_share == 1.0)
    assert found.configuration


def test_selective_needs_a_model():
    with pytest.raises(InvalidConfiguration, match="selective needs --model"):
        Experiment("1f1b", offload="selective").graph()


def test_a_file_says_what_copies_move():
    """And a file that leaves saved activations out can be drawn: there is nothing to leave out."""
    timeline, physical = simulated(experiment("1f1b"))
    timeline = replace(timeline, memory=memory_over_time(timeline.graph, physical))
    found = read_timeline(write_timeline(timeline))
    for own, read in zip(*(curves(each, each.memory) for each in (timeline, found)), strict=True):
        np.testing.assert_array_equal(own.parts[SAVED], read.parts[SAVED])
    others = [held.only(["weights"]) for held in found.memory]
    flat = curves(found, others)
    assert all(np.ptp(curve.total) == 0 for curve in flat)


def test_an_evaluation_has_nothing_to_offload():
    with pytest.raises(InvalidConfiguration, match="an evaluation keeps no activations"):
        build_graph("1f1b", Layout(2, 4), Communication(offload=1), evaluates=True)


def test_a_cluster_without_a_host_link_is_refused():
    chosen = experiment("1f1b", model="llama3-8b")
    unsaid = replace(
        chosen, cluster=replace(H100, device=replace(H100.device, host_bandwidth=None))
    )
    unknown = "does not say its device's host_bandwidth"
    with pytest.raises(InvalidConfiguration, match=unknown):
        simulate(unsaid.graph(), unsaid.costs)
    with pytest.raises(InvalidConfiguration, match=unknown):
        Problem(
            load_model("llama3-8b"), unsaid.cluster, (8,), (8,), ("1f1b",), offload=("selective",)
        )


def test_a_search_offloads_where_that_is_asked_for():
    problem = Problem(
        load_model("llama3-8b"), H100, (8,), (8,), ("1f1b",), CURRENT,
        offload=(0, 1, "selective"), only=(("pp", (4,)), ("tp", (2,)), ("microbatch_size", (1,))),
    )  # fmt: skip
    found = {each.communication.offload: each for each in configurations(problem)}
    assert set(found) == {0, 1, least_passes(problem.physical_of(found[0]), found[0].layout)}
    kept, away = evaluate(problem, [found[0], found[1]])
    assert away.memory_largest_gb < kept.memory_largest_gb
    assert outcome_of(away.whole_record) == away
    assert (kind_of(kept.configuration), kind_of(away.configuration)) == (
        "1f1b", "1f1b with offload",
    )  # fmt: skip

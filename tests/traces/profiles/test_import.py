"""Traces of others as timelines: what is read, aligned, and refused."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.schedules import (
    Communication,
    InvalidInput,
    Layout,
    Operation,
    Sharding,
    build_graph,
)
from bfpp.schedules.orders.actions import LETTERS
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.simpy_engine import simulate
from bfpp.traces.explain.difference import DifferentGraphs, difference
from bfpp.traces.formats.perfetto_reading import read_perfetto
from bfpp.traces.formats.perfetto_writing import write_perfetto
from bfpp.traces.profiles.import_profile import import_profiles
from bfpp.traces.profiles.kineto import read_kineto
from bfpp.traces.profiles.profile import MalformedTrace
from bfpp.traces.timeline.timeline import Timeline
from tests.helpers.measured import executed
from tests.helpers.strategies import graphs

Trace = dict[str, Any]


def event(category: str, name: str, start: float, end: float, **arguments: Any) -> Trace:
    """A slice, by its microseconds."""
    times = {"ts": start, "dur": end - start, "pid": 1, "tid": arguments.pop("tid", 1)}
    return {"ph": "X", "cat": category, "name": name, "args": arguments, **times}


def trace(rank: int, events: list[Trace], base: int = 0) -> Trace:
    told = {"distributedInfo": {"rank": rank}, "baseTimeNanoseconds": base}
    return {**told, "traceEvents": events}


def named(timeline: Timeline, rank: int, slow: float = 0.0) -> Trace:
    """The trace that PyTorch would write of a rank, whose clock is `slow` by so many seconds."""
    graph = timeline.graph
    events = []
    for task, start, end in map(timeline.describe, range(len(graph))):
        # Ranges of one thread do not touch.
        times = 1e6 * (start - slow), 1e6 * (end - slow) - 0.1
        if task.rank == rank and task.operation in LETTERS:
            name = f"PP:{task.stage}{LETTERS[task.operation]}{task.microbatch}"
            events += [event("user_annotation", name, *times), event("cpu_op", "aten::mm", *times)]
        if task.peer == rank and task.operation in RECEIVED:
            stages_on, letter = RECEIVED[task.operation]
            for name in (f"PP:{task.stage + stages_on}RECV_{letter}{task.microbatch}", "gloo:recv"):
                events.append(event("user_annotation", name, *times))
    return trace(rank, events)


RECEIVED = {Operation.TRANSFER_ACTIVATIONS: (1, "F"), Operation.TRANSFER_GRADIENTS: (-1, "B")}
"""Stages from sender to receiver, and PyTorch's letter."""


def simulated(schedule: str, layout: Layout) -> Timeline:
    graph = build_graph(schedule, layout, Communication())
    return simulate(graph, AbstractCosts(transfer=0.25).costs(graph))


def passes(timeline: Timeline) -> dict[tuple[int, int, int], tuple[float, float]]:
    """By operation, stage and micro-batch, when each pass and transfer ran, to a microsecond."""
    return {
        (task.operation, task.stage, task.microbatch): (round(start, 6), round(end, 6))
        for task, start, end in map(timeline.describe, range(len(timeline.graph)))
        if task.microbatch >= 0
    }


@pytest.mark.parametrize("schedule", ["1f1b", "breadth-first", "zb-h1", "zb-v"])
def test_what_is_named_is_imported_as_it_ran(schedule):
    layout = Layout(3, 6, 2 if schedule == "breadth-first" else 1)
    if schedule == "zb-v":
        layout = Layout(3, 6, placement=(0, 1, 2, 2, 1, 0))
    timeline = simulated(schedule, layout)
    found = import_profiles([read_kineto(named(timeline, rank)) for rank in (2, 0, 1)])
    assert passes(found) == passes(timeline)
    assert found.graph.digest == timeline.graph.digest
    assert found.about["clocks"] == "as in the traces"


@given(st.lists(st.floats(-50, 50), min_size=3, max_size=3))
def test_clocks_are_put_right_as_far_as_messages_tell(slow):
    timeline = simulated("1f1b", Layout(3, 6))
    found = import_profiles([read_kineto(named(timeline, rank, slow[rank])) for rank in range(3)])
    graph = found.graph
    late = found.end[graph.dependencies.member] - found.start[graph.dependent]
    assert late.max() < 1e-6
    own = graph.is_compute
    np.testing.assert_allclose(found.duration[own], timeline.duration[own], atol=1e-6)


@given(graphs(ranks=3), st.integers(0, 9))
def test_our_own_traces_come_back(tmp_path_factory, graph, seed):
    timeline = executed(graph, seed)
    path = tmp_path_factory.mktemp("trace") / "trace.json.gz"
    write_perfetto(timeline, path)
    found = read_perfetto(json.loads(gzip.decompress(path.read_bytes())))
    assert found.graph.digest == timeline.graph.digest
    assert (found.source, found.about) == (timeline.source, timeline.about)
    for name in ("start", "posted", "ready"):
        expected = getattr(timeline, name) - timeline.first_start
        np.testing.assert_allclose(
            getattr(found, name), expected, atol=1e-5 if name == "start" else 1e-6
        )


MEGATRON = "megatron/core/pipeline_parallel/schedules.py(1): "
"""Names of this file's functions in a profile with stacks."""


@pytest.mark.parametrize("schedule", ["1f1b", "breadth-first", "zb-h1"])
def test_a_trace_is_laid_over_a_prediction_that_knows_more(schedule):
    sizes = {"pp": 3, "microbatches": 6, "loops": 2 if schedule == "breadth-first" else 1}
    graph = build_graph(schedule, Layout(**sizes, units_per_stage=2), Communication(Sharding.FULL))
    costs = AbstractCosts(transfer=0.25, gather=0.5, reduce=0.5)
    prediction = simulate(graph, costs.costs(graph))
    ran = simulated(schedule, Layout(**sizes))
    found = difference(
        import_profiles([read_kineto(named(ran, rank)) for rank in range(3)]), prediction
    )
    assert found.simulated is prediction
    own = graph.is_compute
    np.testing.assert_allclose(found.measured.duration[own], prediction.duration[own] / 2, 1e-6)
    assert sorted(passes(found.measured)) == sorted(passes(prediction))
    for name, (_, end) in passes(found.measured).items():  # of a pass, that of its last unit
        assert passes(ran)[name][1] == pytest.approx(end, abs=1e-5)
    assert found.not_measured is not None
    unknown = {each.split()[-1] for each in found.not_measured.split(", ")}
    assert unknown == {"all-gather", "reduce-scatter", "optimizer"}
    other = simulated("gpipe", Layout(3, 6))
    with pytest.raises(DifferentGraphs, match="differ in schedule"):
        difference(
            import_profiles([read_kineto(named(other, rank)) for rank in range(3)]), prediction
        )


def on_a_gpu(rank: int, functions: str) -> Trace:
    """Functions of 10 us (or pauses); 5 us later their kernels run for 20 us, and NCCL's."""
    events = []
    for place, letter in enumerate(functions):
        at = 100.0 * place
        if letter == ".":
            continue
        name = {"F": "forward_step", "B": "backward_step"}[letter]
        events += [
            event("python_function", MEGATRON + name, at, at + 10),
            event("python_function", f"pretrain_gpt.py(9): {name}", at + 1, at + 9),
            event("cpu_op", "aten::mm", at + 2, at + 3),
            # Autograd launches from a thread of its own.
            event("cuda_runtime", "cudaLaunchKernel", at + 3, at + 4, correlation=place, tid=2),
            event("kernel", "gemm", at + 5, at + 25, correlation=place, tid=7),
            event("cuda_runtime", "cudaLaunchKernel", at + 5, at + 6, correlation=50 + place),
            event("kernel", "ncclDevKernel_AllReduce", at, at + 60, correlation=50 + place, tid=8),
        ]
    return trace(rank, [*events, event("user_annotation", "my range", 0, 1)])


def test_functions_of_megatron_are_passes_as_long_as_their_kernels():
    found = import_profiles([read_kineto(on_a_gpu(0, "FF...BB")), read_kineto(on_a_gpu(1, "FBFB"))])
    cells = [each for each in passes(found) if each[0] in LETTERS]
    assert len(cells) == 8
    own = found.graph.is_compute
    np.testing.assert_allclose(found.duration[own], 20e-6, atol=1e-9)
    assert found.about["unknown_ranges"] == "2 my range"
    assert "2 transfer activations" in found.about["not_measured"]
    assert found.about["clocks"] == "put forward: rank 1 by 20 µs"


def test_clocks_that_no_shift_puts_right_are_left_as_they_are():
    found = import_profiles([read_kineto(on_a_gpu(0, "FB")), read_kineto(on_a_gpu(1, "F....B"))])
    assert found.about["clocks"] == "as in the traces, which contradict each other"


def test_of_several_steps_one_is_imported():
    first, second = (on_a_gpu(0, "FB")["traceEvents"] for _ in range(2))
    later = [{**each, "ts": each["ts"] + 1000, "dur": 2 * each["dur"]} for each in second]
    for number, (place, each) in enumerate(zip((0, 1000), (first, later), strict=True)):
        for one in each:
            if "correlation" in one["args"]:
                one["args"]["correlation"] += 1000 * number
        each.append(event("user_annotation", f"ProfilerStep#{number}", place, place + 999))
    seen = read_kineto(trace(0, [*first, *later]))
    for step, seconds in ((None, 40e-6), (1, 40e-6), (0, 20e-6)):
        found = import_profiles([seen], step=step)
        np.testing.assert_allclose(found.duration[found.graph.is_compute], seconds, atol=1e-9)
    with pytest.raises(InvalidInput, match=r"step 7 is not in all traces; those that are: 0, 1"):
        import_profiles([seen], step=7)


def test_an_array_of_events_is_a_trace(bfpp, tmp_path):
    """Closed, or as Chrome leaves it: open, with or without a comma after the last event."""
    whole = on_a_gpu(0, "FBFB")
    events = ",\n".join(map(json.dumps, whole["traceEvents"]))
    forms = [json.dumps(whole), f"[{events}]", f"[{events}", f" [\n{events},\n"]
    found = []
    for text in (part for form in forms for part in (form.encode(), gzip.compress(form.encode()))):
        path, out = tmp_path / "trace", tmp_path / "out.json"
        path.write_bytes(text)
        assert bfpp(f"import {path} --out {out}")[0] == 0
        found.append(out.read_text())
    assert len(set(found)) == 1
    path.write_text(forms[1])
    code, _, error = bfpp(f"show {path}")
    assert (code, "bfpp import makes a timeline of it" in error) == (2, True)


REFUSED = {
    "1": "is not a Chrome trace",
    "[]": "no forward or backward pass is known in its trace",
    "[1]": "an event is malformed",
    '[{"ph": "X"': "is not JSON",
    "{": "is not JSON",
    '{"traceEvents": [{"ph": "X", "cat": "cpu_op"}]}': "an event is malformed",
    '{"traceEvents": []}': "rank 0: no forward or backward pass is known in its trace",
    '{"traceEvents": [], "otherData": {"generator": "bfpp"}}': "has no task graph",
    json.dumps(on_a_gpu(0, "FFB")): "the passes are not one step",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_step_is_refused_in_a_line(bfpp, tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_text(text)
    code, _, err = bfpp(f"import {path} --out {tmp_path / 'out.json'}")
    assert code == 2
    assert REFUSED[text] in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["ts", "dur"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_time_is_at_most_a_million_million_seconds(name, sign):
    def of(microseconds):
        event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1}
        return {"traceEvents": [event | {"ts": 0, "dur": 0} | {name: sign * microseconds}]}

    [read] = read_kineto(of(1e18)).operators
    assert (read.start if name == "ts" else read.end) == sign * 1e12
    for microseconds in (1.0001e18, float("inf"), float("nan")):
        with pytest.raises(MalformedTrace, match="is no time in microseconds"):
            read_kineto(of(microseconds))


def test_orders_of_other_passes_are_refused(bfpp, tmp_path):
    path, orders = tmp_path / "trace.json", tmp_path / "orders.csv"
    path.write_text(json.dumps(on_a_gpu(0, "FBFB")))
    for text, reason in (
        ("0F0,0B0\n", "rank 0: the trace has 4 passes, and the order 2"),
        ("0F0,0F1,0B0,0B1\n", "rank 0: pass 2 of the trace is backward, and not of the order"),
        ("0F0,0B0\n1F0,1B0\n", "there are traces of 1 ranks, and orders of 2"),
    ):
        orders.write_text(text)
        code, _, err = bfpp(f"import {path} --orders {orders} --out {tmp_path / 'out.json'}")
        assert (code, reason in err) == (2, True)


def test_our_own_trace_is_imported_by_the_command(bfpp, answer, tmp_path):
    files = f"--perfetto {tmp_path / 'p.json'} --timeline {tmp_path / 't.json'}"
    assert bfpp(f"simulate gpipe --pp 2 --transfer 0.5 {files}")[0] == 0
    assert bfpp(f"import {tmp_path / 'p.json'} --out {tmp_path / 'again.json'}")[0] == 0
    shown, before = (answer(f"show {tmp_path / name}") for name in ("again.json", "t.json"))
    for name in ("step_time", "bubble", "digest", "source", "about"):
        assert shown[name] == before[name]

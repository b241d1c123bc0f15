"""Timelines as files: what is written comes back, and anything else is refused in one line."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.api.predictions import predict
from bfpp.schedules import Communication, InvalidConfiguration, Layout, Sharding, build_graph
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.traces.explain.causes import Causes
from bfpp.traces.explain.difference import difference
from bfpp.traces.explain.looks import Cause
from bfpp.traces.figures.panel import Panel
from bfpp.traces.figures.svg.schedule import svg
from bfpp.traces.figures.terminal import text as drawn_text
from bfpp.traces.formats.perfetto_writing import LONGEST, events
from bfpp.traces.formats.timeline_json import (
    FORMAT,
    MalformedTimeline,
    load_timeline,
    read_timeline,
    save_timeline,
    write_timeline,
)
from bfpp.traces.page.html import page
from bfpp.traces.timeline.memory_curves import curves
from bfpp.traces.timeline.memory_record import PARTS, MemoryRecord, steps_of
from bfpp.traces.timeline.metrics import rank_metrics
from bfpp.traces.timeline.units import GIGABYTE
from tests.helpers.measured import executed, measured
from tests.helpers.strategies import graphs, order_graphs

SOME = settings(derandomize=True, deadline=None, max_examples=60)
COLUMNS = ("start", "end", "posted", "ready")

simulated = st.one_of(graphs(), order_graphs()).map(
    lambda graph: simulate(graph, AbstractCosts(1.1, 2.3, transfer=0.1, gather=1 / 3))
)
abouts = st.dictionaries(
    st.text(), st.text() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)


@SOME
@given(st.one_of(simulated, measured(), measured(clock_error=0.3)), abouts)
def test_what_is_written_comes_back(timeline, about):
    timeline = replace(timeline, about=about)
    text = write_timeline(timeline)
    again = read_timeline(text)
    assert write_timeline(again) == text
    assert again.source == timeline.source
    assert again.about == timeline.about
    assert again.graph.digest == timeline.graph.digest
    assert again.graph.schedule == timeline.graph.schedule
    for name in COLUMNS:
        column, written = getattr(again, name), getattr(timeline, name)
        assert (column is None) == (written is None)
        assert column is None or (column == written).all()


def of_replicas() -> dict:
    """A timeline whose replicas differ, as JSON holds it."""
    slowed = Experiment("1f1b", pp=2, dp=3, microbatches=4, reduce=0.4, slow="rank=1,replica=1:1.3")
    return json.loads(write_timeline(predict(slowed).whole_timeline))


def test_replicas_come_back():
    again = read_timeline(json.dumps(of_replicas()))
    assert json.loads(write_timeline(again)) == of_replicas()
    replicas = again.replicas
    assert (replicas.shown, replicas.of_replica.tolist(), len(replicas.timelines)) == (
        1, [0, 1, 0], 2,
    )  # fmt: skip
    np.testing.assert_array_equal(replicas.of(1).start, again.start)
    waits = [Causes(replicas.of(each)).mean_rank[str(Cause.REPLICAS)] for each in range(3)]
    assert waits == [pytest.approx(3.6), 0.0, pytest.approx(3.6)]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (3, "is not an object"),
        ({"times": 3}, "there are no times"),
        ({"times": [3]}, "there are no times"),
        ({"of_replica": [True]}, "does not hold numbers"),
        ({"of_replica": []}, "does not hold numbers"),
        ({"of_replica": [0, 2, 0]}, "not one of 2"),
        ({"shown": 3}, "not one of 2"),
        ({"shown": [0]}, "not one of 2"),
        ({"groups": 0}, "cannot be in groups"),
        ({"groups": True}, "cannot be in groups"),
        ({"groups": 2}, "without hybrid sharding"),
    ],
)
def test_replicas_that_are_none_are_refused(wrong, words):
    record = of_replicas()
    record["replicas"] = record["replicas"] | wrong if isinstance(wrong, dict) else wrong
    with pytest.raises(MalformedTimeline, match=f"replicas: .*{words}"):
        read_timeline(json.dumps(record))


@pytest.mark.parametrize("missing", ["times", "of_replica", "shown", "groups"])
def test_replicas_without_a_key_are_refused(missing):
    record = of_replicas()
    del record["replicas"][missing]
    with pytest.raises(MalformedTimeline, match=f"KeyError '{missing}'"):
        read_timeline(json.dumps(record))


def example():
    graph = build_graph("breadth-first", Layout(2, 2, 2), Communication(Sharding.FULL))
    return executed(graph, 0)


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
def test_files(tmp_path, name):
    save_timeline(example(), tmp_path / name)
    assert write_timeline(load_timeline(tmp_path / name)) == write_timeline(example())
    written = (tmp_path / name).read_bytes()
    assert written.startswith(b"\x1f\x8b") == name.endswith(".gz")
    save_timeline(example(), tmp_path / name)
    assert (tmp_path / name).read_bytes() == written
    with pytest.raises(FileNotFoundError):
        load_timeline(tmp_path / "nowhere")


def test_compressed_files_are_known_by_their_first_bytes(tmp_path):
    save_timeline(example(), tmp_path / "step.json.gz")
    (tmp_path / "step.json.gz").rename(tmp_path / "step")
    assert load_timeline(tmp_path / "step").graph.digest == example().graph.digest


def test_the_form_is_what_the_module_says():
    record = json.loads(write_timeline(example()))
    assert list(record) == ["format", "source", "about", "graph", *COLUMNS]
    assert record["format"] == FORMAT
    graph = example().graph
    record = json.loads(write_timeline(simulate(graph, AbstractCosts())))
    assert (record["posted"], record["ready"], record["about"]) == (None, None, {})


def test_times_that_are_not_finite_are_not_written():
    start = example().start.copy()
    start[3] = np.inf
    with pytest.raises(ValueError, match="JSON"):
        write_timeline(replace(example(), start=start))


PACKED = gzip.compress(write_timeline(example()).encode())
MALFORMED = {
    b"": "is not JSON",
    b"\xff\xfe": "is not JSON",
    b"[]": 'has no "format"',
    b'{"format": "bfpp task graph 1"}': 'has no "format"',
    f'{{"format": "{FORMAT}"}}'.encode(): "is not a timeline: KeyError 'source'",
    PACKED[:-9]: "cannot be decompressed",
    PACKED[:10]: "cannot be decompressed",
    PACKED[:99] + b"\0\0\0" + PACKED[102:]: "cannot be decompressed",
    b"\x1f\x8b\x08": "cannot be decompressed",
    gzip.compress(b"{"): "is not JSON",
}


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_other_texts_are_refused(text):
    with pytest.raises(MalformedTimeline, match=MALFORMED[text]) as caught:
        read_timeline(text)
    assert caught.value.field == "file"
    assert isinstance(caught.value, InvalidConfiguration)


CHANGES = [
    ("source", 3, "source is not a name"),
    ("about", [], "about does not hold names"),
    ("about.host", None, "about: 'host' is neither a text nor a finite number"),
    ("about.host", True, "about: 'host' is neither"),
    ("about.host", float("nan"), "about: 'host' is neither"),
    ("about.\n", ["x"], r"about: '\\n' is neither"),
    ("graph", None, "graph: is not a task graph"),
    ("graph.lanes", [], "graph: lane: there is no number"),
    ("graph.lanes.0.0", 1, "graph: #2 is on a lane of another rank than its own"),
    ("graph.lanes.0.0", 10**20, "is not a timeline: OverflowError"),
    ("graph.tasks.rank.0", 77, "graph: #0 has rank 77, which does not exist"),
    ("graph.tasks.peer.0", 1, "graph: #0 is on a lane of another rank"),
    ("graph.tasks.unit.0", 99, "graph: #0 has unit 99"),
    ("graph.tasks.dependencies.0", [5], "graph: #0 .* waits for .*, whose number is not smaller"),
    ("graph.tasks.dependencies.0", [0], "graph: #0 .* waits for .*, whose number is not smaller"),
    ("start", None, "start does not hold seconds"),
    ("start", [1.0], "start does not hold seconds for each of"),
    ("end.0", "1", "end does not hold seconds"),
    ("end.0", True, "end does not hold seconds"),
    ("end.0", float("nan"), "end holds a number that is not finite"),
    ("end.0", float("inf"), "end holds a number that is not finite"),
    ("end.0", 10**400, "end holds a number that is not finite"),
    ("posted", 3, "posted does not hold seconds"),
    ("ready", [], "ready does not hold seconds for each of"),
]


def changed(place, value):
    record = json.loads(write_timeline(example()))
    *way, last = [int(word) if word.isdigit() else word for word in place.split(".")]
    holder = record
    for word in way:
        holder = holder[word]
    holder[last] = value
    return json.dumps(record)


@pytest.mark.parametrize(("place", "value", "reason"), CHANGES)
def test_timelines_with_one_fault_are_refused(place, value, reason):
    with pytest.raises(MalformedTimeline, match=reason) as caught:
        read_timeline(changed(place, value))
    assert "\n" not in caught.value.reason


def test_a_rank_without_work_is_refused():
    record = json.loads(write_timeline(example()))
    tasks = record["graph"]["tasks"]
    tasks["operation"] = ["OPTIMIZER" if rank else name for rank, name in
                          zip(tasks["rank"], tasks["operation"], strict=True)]  # fmt: skip
    with pytest.raises(MalformedTimeline, match="a rank without a forward or a backward pass"):
        read_timeline(json.dumps(record))


def test_a_step_of_unspeakable_length_is_refused():
    record = json.loads(write_timeline(example()))
    record["start"][0], record["end"][-1] = -1.5e308, 1.5e308
    with pytest.raises(MalformedTimeline, match="holds more than 1e\\+100 seconds"):
        read_timeline(json.dumps(record))


def reports(timeline):
    """All that is said of a timeline."""
    rank_metrics(timeline)
    causes = Causes(timeline)
    assert causes.waits is not None
    assert causes.critical_path
    if timeline.step_time < LONGEST:
        list(events(timeline))
    svg([Panel("", timeline)])
    drawn_text(timeline)
    page([Panel("", timeline)], "")


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.data())
def test_a_garbled_file_is_refused_or_can_be_shown(data):
    graph = build_graph("gpipe", Layout(2, 2))
    text = write_timeline(executed(graph, 1)).encode()
    at = data.draw(st.integers(0, len(text) - 1))
    kind = data.draw(st.sampled_from(["cut", "digit", "byte", "twice"]))
    garbled = {
        "cut": text[:at],
        "digit": text[:at] + b"7" + text[at + 1 :],
        "byte": text[:at] + data.draw(st.binary(min_size=1, max_size=3)) + text[at + 1 :],
        "twice": text[:at] + text[max(at - 9, 0) :],
    }[kind]
    try:
        timeline = read_timeline(garbled)
    except MalformedTimeline:
        return
    reports(timeline)


def with_memory():
    timeline = example()
    graph, rng = timeline.graph, np.random.default_rng(0)
    held = []
    for rank in range(graph.layout.pp):
        steps = len(steps_of(graph, rank))
        parts = {PARTS["state"]: np.full(steps, 1 / 3), PARTS["saved"]: rng.random(steps)}
        held.append(MemoryRecord(rank, parts, {name: part / 2 for name, part in parts.items()}))
    return replace(timeline, memory=held)


def test_what_ranks_hold_comes_back_and_is_drawn():
    timeline = with_memory()
    text = write_timeline(timeline)
    again = read_timeline(text)
    assert write_timeline(again) == text
    for curve, held in zip(curves(again, again.memory), timeline.memory, strict=True):
        assert curve.total.max() == pytest.approx(held.total.max() / GIGABYTE)
        assert curve.task[curve.peak] == steps_of(timeline.graph, held.rank)[held.peak]
    assert read_timeline(write_timeline(example())).memory == []
    assert page([Panel("", again, memory=curves(again, again.memory))], "")


def test_a_difference_is_of_the_parts_that_both_know():
    timeline = with_memory()
    known = [held.only([PARTS["saved"]]) for held in timeline.memory]
    found = difference(replace(timeline, memory=known), timeline).memory
    for each, held in zip(found, known, strict=True):
        assert each.parts.keys() == {PARTS["saved"]}
        assert each.peak.simulated == each.peak.measured == held.total.max()
        assert each.measured_task.number == steps_of(timeline.graph, each.rank)[held.peak]
    assert difference(timeline, example()).memory == []


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda memory: memory.pop(), "not a list with an object for each of 2 ranks"),
        (lambda memory: memory[1].pop("after"), "rank 1 has no objects 'during' and 'after'"),
        (lambda memory: memory[1]["after"].clear(), "rank 1 does not have the parts of rank 0"),
        (lambda memory: memory[0]["during"].update(others=1), "parts other than"),
        (lambda memory: memory[0]["during"].clear(), "parts other than"),
        (
            lambda memory: memory[1]["during"].update({PARTS["state"]: [1]}),
            "'during' of rank 1: .* has 1 sizes for [0-9]+ steps",
        ),
        (
            lambda memory: memory[1].update(copied=[1, 2]),
            "'copied' of rank 1 has 2 sizes for 0 copies",
        ),
        *(
            (
                lambda memory, size=size: memory[1]["during"].update({PARTS["state"]: size}),
                "a size that is not a number of bytes",
            )
            for size in (-1, True, 1e400)
        ),
    ],
)
def test_memory_that_no_rank_can_hold_is_refused(spoil, reason):
    record = json.loads(write_timeline(with_memory()))
    spoil(record["memory"])
    with pytest.raises(MalformedTimeline, match=f"memory: .*{reason}"):
        read_timeline(json.dumps(record))

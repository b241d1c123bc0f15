"""Timelines for other tools: Chakra and Kineto traces, read back, and by others' readers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfpp.schedules import Layout
from bfpp.schedules.orders.actions import LETTERS
from bfpp.traces.explain.difference import difference
from bfpp.traces.formats import chakra
from bfpp.traces.formats.kineto_writing import kineto_files
from bfpp.traces.profiles.import_profile import import_profiles
from bfpp.traces.profiles.kineto import read_kineto
from bfpp.traces.timeline.timeline import Timeline
from tests.helpers.measured import executed
from tests.helpers.strategies import graphs
from tests.traces.profiles.test_import import simulated


@pytest.fixture(scope="module")
def schema():
    """Chakra's messages, as far as we write them, by protobuf's own implementation."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = {"double": 1, "int64": 3, "uint64": 4, "bool": 8, "string": 9, "message": 11}
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="et", syntax="proto3")

    def message(name: str, *fields: tuple[str, str, int, bool, str]) -> None:
        declared = file.message_type.add(name=name)
        for field, kind, number, repeated, of in fields:
            declared.field.add(
                name=field, type=kinds[kind], number=number, label=3 if repeated else 1,
                type_name=of or None,
            )  # fmt: skip

    message(
        "Attribute",
        ("name", "string", 1, False, ""),
        ("double_val", "double", 3, False, ""),
        ("int64_val", "int64", 9, False, ""),
        ("bool_val", "bool", 27, False, ""),
        ("string_val", "string", 29, False, ""),
    )
    message(
        "Metadata",
        ("version", "string", 1, False, ""),
        ("attr", "message", 2, True, ".et.Attribute"),
    )
    message(
        "Node",
        ("id", "uint64", 1, False, ""),
        ("name", "string", 2, False, ""),
        ("type", "uint64", 3, False, ""),
        ("ctrl_deps", "uint64", 4, True, ""),
        ("data_deps", "uint64", 5, True, ""),
        ("start_time_micros", "uint64", 6, False, ""),
        ("duration_micros", "uint64", 7, False, ""),
        ("attr", "message", 10, True, ".et.Attribute"),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"et.{name}"))
        for name in ("Metadata", "Node")
    }


def read_by_others(data: bytes, schema: dict[str, Any]) -> tuple[Any, list[Any]]:
    """A file's metadata and nodes."""
    from google.protobuf.internal.decoder import _DecodeVarint32  # optional

    found, at = [], 0
    while at < len(data):
        size, at = _DecodeVarint32(data, at)
        found.append(schema["Node" if found else "Metadata"].FromString(data[at : at + size]))
        at += size
    return found[0], found[1:]


def attribute(message: Any, name: str) -> Any:
    (found,) = [each for each in message.attr if each.name == name]
    (value,) = [value for field, value in found.ListFields() if field.name != "name"] or [0]
    return value


@given(graph=graphs(ranks=3), seed=st.integers(0, 9))
def test_chakra_traces_come_back_whole(graph, seed):
    timeline = executed(graph, seed)
    found = chakra.read_chakra([data for _, data in chakra.chakra_files(timeline)])
    assert found.graph.digest == graph.digest
    assert (found.graph.schedule, found.source) == (graph.schedule, timeline.source)
    assert found.about == timeline.about
    for name in ("start", "end", "posted", "ready"):
        np.testing.assert_array_equal(getattr(found, name), getattr(timeline, name))


def test_others_read_our_chakra_traces(schema):
    timeline = simulated("1f1b", Layout(3, 4))
    graph = timeline.graph
    seen = {}
    for rank, (name, data) in enumerate(chakra.chakra_files(timeline)):
        assert name == f"chakra.{rank}.et"
        metadata, nodes = read_by_others(data, schema)
        assert attribute(metadata, "rank") == rank
        assert {node.id for node in nodes} == set(np.flatnonzero(graph.takes_part(rank)))
        for node in nodes:
            task, start, end = timeline.describe(node.id)
            assert node.start_time_micros == round(start * 1e6)
            assert node.start_time_micros + node.duration_micros == round(end * 1e6)
            assert set(node.data_deps) <= set(task.dependencies)
            seen.setdefault(node.id, set()).update(node.data_deps)
            if graph.is_transfer[node.id]:
                assert node.type == (chakra.SENDS if task.rank == rank else chakra.RECEIVES)
                ends = attribute(node, "comm_src"), attribute(node, "comm_dst")
                assert ends == (task.rank, task.peer)
                assert attribute(node, "comm_tag") == node.id
            elif task.operation in LETTERS:
                assert node.type == chakra.COMPUTES
    # Each dependency is in the file of the rank that runs both tasks.
    assert seen == {number: set(graph.task(number).dependencies) for number in range(len(graph))}


def test_moments_count_from_the_first_start(schema):
    """Of a step on a clock that began 4 s before it: files of others begin at 0 all the same."""
    timeline = simulated("1f1b", Layout(3, 4))
    late = replace(timeline, start=timeline.start + 4, end=timeline.end + 4)
    assert late.first_start == 4
    moments = [
        [
            [(node.start_time_micros, node.duration_micros) for node in nodes]
            for _, nodes in (read_by_others(data, schema) for _, data in chakra.chakra_files(each))
        ]
        for each in (timeline, late)
    ]
    assert moments[0] == moments[1]
    assert moments[0][0][0] == (0, 1_000_000)
    assert [*kineto_files(late)] == [*kineto_files(timeline)]


def test_what_others_wrote_by_that_schema_is_refused(bfpp, schema, tmp_path):
    metadata = schema["Metadata"](version="0.0.4")
    node = schema["Node"](id=1, name="x", type=4, ctrl_deps=[3, 4])
    texts = (each.SerializeToString() for each in (metadata, node))
    (tmp_path / "others.et").write_bytes(b"".join(bytes([len(text)]) + text for text in texts))
    (tmp_path / "cut.et").write_bytes(
        next(chakra.chakra_files(simulated("1f1b", Layout(2, 2))))[1][:90]
    )
    (tmp_path / "text.et").write_text("cats and dogs")
    for name, reason in (
        ("others.et", "bfpp did not write rank 0's trace"),
        ("cut.et", "ends within a message"),
        ("text.et", "ends within a message"),
    ):
        code, _, err = bfpp(f"import {tmp_path / name} --out {tmp_path / 'out.json'}")
        assert (code, err.count("\n"), reason in err) == (2, 1, True)
    ours = tmp_path / "ours.et"
    ours.write_bytes(next(chakra.chakra_files(simulated("1f1b", Layout(2, 2))))[1])
    code, _, err = bfpp(f"explain {ours}")
    assert (code, err.count("\n"), "bfpp import makes a timeline of it" in err) == (2, 1, True)


@pytest.mark.parametrize("command", ["explain {}", "import {} --out out.json"])
def test_execution_traces_without_times_are_refused_with_what_to_give(bfpp, tmp_path, command):
    """As PyTorch's `ExecutionTraceObserver` writes them."""
    node = {"name": "aten::add", "id": 2, "parent": 1, "seq_id": -1}
    path = tmp_path / "et.json"
    path.write_text(json.dumps({"schema": "1.0.1", "pid": 3, "nodes": [node]}))
    code, _, err = bfpp(command.format(path))
    assert (code, err.count("\n")) == (2, 1)
    assert "an execution trace of PyTorch, which has no start times" in err


def named_passes(timeline: Timeline) -> dict[tuple[int, int, int], tuple[float, float]]:
    """Passes and transfers by what they are, from the first of them on, to a nanosecond."""
    found = [
        (each, start, end)
        for each, start, end in map(timeline.describe, range(len(timeline.graph)))
        if each.microbatch >= 0
    ]
    first = min(start for _, start, _ in found)
    return {
        (each.operation, each.stage, each.microbatch): (
            round(start - first, 8),
            round(end - first, 8),
        )
        for each, start, end in found
    }


@pytest.mark.parametrize(
    ("schedule", "layout"),
    [("1f1b", Layout(3, 6)), ("breadth-first", Layout(3, 6, 2)), ("zb-h1", Layout(2, 4))],
)
def test_kineto_traces_come_back_as_they_ran(schedule, layout):
    timeline = simulated(schedule, layout)
    found = import_profiles([read_kineto(json.loads(text)) for _, text in kineto_files(timeline)])
    assert found.about["passes"] == "by name"
    assert found.about["unknown_ranges"] == "none"
    assert named_passes(found) == named_passes(timeline)
    assert found.graph.digest == timeline.graph.digest


def test_units_of_a_kineto_trace_come_back_as_passes_of_their_stage():
    timeline = simulated("1f1b", Layout(3, 6, units_per_stage=2))
    found = import_profiles([read_kineto(json.loads(text)) for _, text in kineto_files(timeline)])
    assert found.graph.layout.units_per_stage == (1, 1, 1)
    again = difference(timeline, found)
    assert again.step_time.error == pytest.approx(0, abs=1e-6)
    assert all(abs(each.duration.difference) < 1e-6 for each in again.worst)


def test_the_commands_write_and_read_them(bfpp, answer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "simulate 1f1b --pp 2 --microbatches 4 --sharding full --gather 0.25"
    code, _, err = bfpp(f"{words} --chakra c --kineto k --timeline step.json")
    assert code == 0
    assert "--chakra leaves out numbers of bytes" in err
    assert bfpp("import c/chakra.0.et c/chakra.1.et --out again.json")[0] == 0
    for name in ("step_time", "bubble", "digest", "source", "about"):
        assert answer("show again.json")[name] == answer("show step.json")[name]
    events = json.loads(Path("k/kineto.0.json").read_text())["traceEvents"]
    assert "ncclDevKernel_AllGather" in {event["name"] for event in events}
    Path("k/kineto.1.json").write_text("mine")
    code, _, err = bfpp("show step.json --kineto k")
    assert (code, "k/kineto.1.json already exists" in err) == (2, True)

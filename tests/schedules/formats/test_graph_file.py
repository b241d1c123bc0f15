"""Task graphs as JSON: what is written comes back, and anything else is refused in one line."""

from __future__ import annotations

import json

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.schedules import Communication, InvalidConfiguration, Layout, Sharding, build_graph
from bfpp.schedules.formats.graph_json import (
    COLUMNS,
    FORMAT,
    MalformedGraph,
    read_graph,
    write_graph,
)
from bfpp.schedules.validity import violations
from tests.helpers.strategies import graphs, order_graphs


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.one_of(graphs(), order_graphs()))
def test_what_is_written_comes_back(graph):
    text = write_graph(graph)
    again = read_graph(text)
    assert write_graph(again) == text
    assert again.schedule == graph.schedule
    assert again.layout == graph.layout
    assert again.communication == graph.communication
    assert again.lanes == graph.lanes
    for name in COLUMNS:
        column = getattr(again, name)
        assert np.array_equal(column, getattr(graph, name))
        assert column.dtype == getattr(graph, name).dtype
    assert np.array_equal(again.dependencies.start, graph.dependencies.start)
    assert np.array_equal(again.dependencies.member, graph.dependencies.member)
    assert list(again.tasks()) == list(graph.tasks())
    assert violations(again) == []


def record():
    graph = build_graph("breadth-first", Layout(2, 2, 2), Communication(Sharding.FULL))
    return json.loads(write_graph(graph))


def test_the_form_is_what_the_module_says():
    written = record()
    assert list(written) == [
        "format", "schedule", "layout", "communication", "lanes", "templates", "tasks",
        "posts",
    ]  # fmt: skip
    assert written["format"] == FORMAT
    assert list(written["tasks"]) == [*COLUMNS, "dependencies"]
    assert set(written["tasks"]["operation"]) >= {"FORWARD", "BACKWARD", "GATHER", "REDUCE"}


def test_bytes_are_read_too():
    text = json.dumps(record())
    assert write_graph(read_graph(text.encode())) == write_graph(read_graph(text))


MALFORMED_TEXTS = {
    "": "is not JSON",
    "{": "is not JSON",
    '{"a": ' + "[" * 100_000: "is not JSON",
    '{"a": ' + "9" * 5000 + "}": "is not JSON",
    "[]": 'has no "format"',
    "3": 'has no "format"',
    "{}": 'has no "format"',
    '{"format": "bfpp timeline 1"}': 'has no "format"',
    '{"format": "bfpp task graph 1"}': "is a task graph of another version of bfpp",
    f'{{"format": "{FORMAT}"}}': "is not a task graph: KeyError",
}


@pytest.mark.parametrize("text", MALFORMED_TEXTS, ids=range(len(MALFORMED_TEXTS)))
def test_other_texts_are_refused(text):
    with pytest.raises(MalformedGraph, match=MALFORMED_TEXTS[text]) as caught:
        read_graph(text)
    assert caught.value.field == "file"


@pytest.mark.parametrize("text", [b"\xff\xfe", bytes(range(256)), b"\0"])
def test_bytes_that_are_no_text_are_refused(text):
    with pytest.raises(MalformedGraph, match="is not JSON"):
        read_graph(text)


CHANGES = [
    ("layout", None, "is not a task graph"),
    ("layout.pp", 0, "the layout cannot be: pp: must be at least 1"),
    ("layout.pp", 2.5, "layout: pp must be a whole number, not 2.5"),
    ("layout.pp", True, "layout: pp must be a whole number"),
    ("layout.pp", "2", "layout: pp must be a whole number, not '2'"),
    ("layout.microbatches", None, "layout: microbatches must be a whole number"),
    ("layout.microbatches", 10**12, "too few for 1000000000000 microbatches"),
    ("layout.units_per_stage", [10**9] * 4, "too few for 2 microbatches in 4000000000 units"),
    ("layout.units_per_stage", [1], "units_per_stage: there are 4 stages, not 1"),
    ("layout.placement", [0, 1, 0], "units_per_stage: there are 3 stages, not 4"),
    ("layout.placement", [0, 1, 0, 2], "placement: there is no rank 2"),
    ("layout.placement", "looped", "column layout: placement does not hold whole numbers"),
    ("layout.placement", ["0"], "column layout: placement does not hold whole numbers"),
    ("layout.sequence", "2", "is not a task graph"),
    ("layout.colour", "red", "is not a task graph"),
    ("communication.sharding", "some", "'some' is not one of none"),
    ("communication.dp_overlap", "yes", "communication: dp_overlap must be true or false"),
    ("communication.hybrid", 1, "communication: hybrid must be true or false"),
    ("lanes", None, "is not a task graph"),
    ("lanes", [], "lane: there is no number"),
    ("lanes.0", [0, "COMPUTE"], "is not a task graph"),
    ("lanes.0", [0, "EXPRESS", -1], "'EXPRESS'"),
    ("tasks", [], "is not a task graph"),
    ("tasks.operation.0", "EAT", "'EAT'"),
    ("tasks.operation.0", 3, "is not a task graph: KeyError 3"),
    ("tasks.rank", [0], "column rank does not hold one number for each of"),
    ("tasks.rank.0", 1.5, "column rank does not hold whole numbers"),
    ("tasks.rank.0", "1", "column rank does not hold whole numbers"),
    ("tasks.rank.0", [1], "column rank does not hold whole numbers"),
    ("tasks.rank.0", 2**40, "is not a task graph: OverflowError"),
    ("tasks.lane.0", 99, "lane: there is no number 99"),
    ("tasks.lane.0", -1, "lane: there is no number -1"),
    ("tasks.peer_lane.0", -2, "peer_lane: there is no number -2"),
    ("tasks.dependencies", [[]], "column dependencies does not hold one list for each of"),
    ("tasks.dependencies.0", 3, "column dependencies does not hold lists"),
    ("tasks.dependencies.0", "1", "column dependencies does not hold lists"),
    ("tasks.dependencies.0", [0.5], "column dependencies does not hold whole numbers"),
    ("tasks.dependencies.0", [9999], "dependencies: there is no number 9999"),
    ("tasks.dependencies.0", [-1], "dependencies: there is no number -1"),
]


@pytest.mark.parametrize(("place", "value", "reason"), CHANGES)
def test_graphs_with_one_fault_are_refused(place, value, reason):
    changed = record()
    *way, last = [int(word) if word.isdigit() else word for word in place.split(".")]
    holder = changed
    for word in way:
        holder = holder[word]
    holder[last] = value
    with pytest.raises(MalformedGraph, match=reason) as caught:
        read_graph(json.dumps(changed))
    assert isinstance(caught.value, InvalidConfiguration)
    assert "\n" not in caught.value.reason


def test_files_from_before_there_were_pieces_are_read():
    changed = record()
    del changed["tasks"]["piece"], changed["tasks"]["block"], changed["templates"]
    assert read_graph(json.dumps(changed)).digest == read_graph(json.dumps(record())).digest


@pytest.mark.parametrize(
    "column", [*(each for each in COLUMNS if each not in ("piece", "block")), "dependencies"]
)
def test_every_column_is_needed(column):
    changed = record()
    del changed["tasks"][column]
    with pytest.raises(MalformedGraph, match=f"KeyError '{column}'"):
        read_graph(json.dumps(changed))


def test_the_meaning_is_left_to_the_checker():
    changed = record()
    changed["tasks"]["rank"][0] = 77
    assert [each.rule for each in violations(read_graph(json.dumps(changed)))] == ["columns"]


@given(graphs())
@settings(derandomize=True, deadline=None, max_examples=20)
def test_networkx_has_every_task_and_all_that_it_waits_for(graph):
    found = graph.to_networkx()
    assert networkx.is_directed_acyclic_graph(found)
    for task in graph.tasks():
        assert found.nodes[task.number]["operation"] == task.operation.name
        assert found.nodes[task.number]["unit"] == task.unit
        waits = set(found.predecessors(task.number))
        assert set(task.dependencies) <= waits
    in_lanes = {(a, b) for a, b, kind in found.edges(data="kind") if kind == "lane"}
    ahead, behind = (each.tolist() for each in graph.lane_neighbours)
    both = set(zip(ahead, behind, strict=True))
    assert in_lanes <= both

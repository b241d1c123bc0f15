"""Replays of Chakra's traces that others wrote: bytes made by its schema, and a public file."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfpp.api.recorded.kernels import load_traces
from bfpp.schedules import InvalidInput
from bfpp.schedules.errors import InvalidFile
from bfpp.traces.formats.chakra_nodes import ChakraNode, read_nodes
from bfpp.traces.kernels.replay import ImpossibleReplay, matched_collectives, replayed
from tests.helpers.chakra_files import node, one_rank, trace

CHECKOUT = "BFPP_CHAKRA_CHECKOUT"
COMMIT = "58fda3ed3bbb9dd83008e66a38136e2428dc3b88"


def written(folder, *ranks):
    for rank, data in enumerate(ranks):
        (folder / f"chakra.{rank}.et").write_bytes(data)
    return [folder / f"chakra.{rank}.et" for rank in range(len(ranks))]


def test_ranks_wait_for_the_last_one(tmp_path):
    explained = load_traces(written(tmp_path, one_rank(100, 10), one_rank(40, 15)), "TRACE")
    times = [
        {
            own.names[name]: [round((it + own.base) * 1e6) for it in (start, end)]
            for name, start, end in zip(own.name, own.start, own.end, strict=True)
        }
        for own in (each.devices for each in explained.ranks)
    ]
    reduce = {"ncclDevKernel_AllReduce": [110, 140]}
    assert times[0] == {"gemm": [10, 110], "Memcpy DtoD": [110, 120], **reduce}
    assert times[1] == {"gemm": [15, 55], "Memcpy DtoD": [55, 65], **reduce}
    parts = [each.breakdown.whole for each in explained.ranks]
    assert [round(each.compute * 1e6) for each in parts] == [100, 40]
    assert [round(each.idle * 1e6) for each in parts] == [0, 45]
    assert [round(each.exposed_communication * 1e6) for each in parts] == [30, 30]
    [(call, called)] = explained.ranks[0].breakdown.by_collective.items()
    assert (call.group.name, call.operation, call.bytes) == ("3", "all-reduce", 4096)
    assert called.bytes == 4096
    assert "1 collectives of several ranks" in explained.ranks[0].replayed


def test_ranks_of_other_groups_do_not_wait(tmp_path):
    paths = written(tmp_path, one_rank(100, 10), one_rank(40, 15, group="4"))
    _, other = load_traces(paths, "TRACE").ranks
    assert round(other.breakdown.whole.seconds * 1e6) == 70
    assert "2 kernels of collectives wait for no rank" in other.replayed


def test_text_and_json_say_that_times_are_replayed(bfpp, tmp_path):
    paths = written(tmp_path, one_rank(100, 10), one_rank(40, 15))
    code, out, err = bfpp(f"explain {paths[0]} {paths[1]}")
    assert (code, err) == (0, "")
    assert out.startswith("Start times are replayed, not measured: ")
    code, out, _ = bfpp(f"explain {paths[0]} {paths[1]} --json")
    record = json.loads(out)
    assert [each["profiler"] for each in record["traces"]] == ["Chakra"] * 2
    assert all(each["replayed"].startswith("Start times are replayed") for each in record["traces"])
    assert all("Start times: they are replayed." in it["not_measured"] for it in record["traces"])
    assert record["no_pipeline"].startswith("the start times are replayed")
    pytest.importorskip("jsonschema")
    code, schema, _ = bfpp("explain --json-schema")
    import jsonschema

    jsonschema.validate(record, json.loads(schema))


def test_nodes_that_wait_for_each_other_are_refused(tmp_path):
    [path] = written(tmp_path, trace(node(1, "a", 1, [2]), node(2, "b", 1, [1])))
    with pytest.raises(InvalidInput, match="2 nodes wait for each other"):
        load_traces([path], "TRACE")
    [path] = written(tmp_path, trace(node(1, "a", 1), node(1, "b", 1)))
    with pytest.raises(InvalidInput, match="two nodes have one number"):
        load_traces([path], "TRACE")


CALLS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["all-reduce", "all-gather"])))
NODES = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.booleans(),
        st.booleans(),
        st.sampled_from(["stream 1", "stream 2"]),
        st.lists(st.integers(0, 30), max_size=2),
    )
)
LAST = (5, True, False, "", [])
"""The node of a collective for which a rank has drawn none."""


def nodes_of(calls, drawn):
    """A rank's nodes, some of them the collectives, in order; each after some earlier ones."""
    left, nodes = list(calls), []
    for seconds, is_call, on_host, stream, earlier in [*drawn, *[LAST] * len(calls)]:
        own = len(nodes)
        after = {each % own for each in earlier} if own else set()
        if is_call and left:
            group, operation = left.pop(0)
            after |= {it.number for it in nodes if it.group}  # in order, as on streams
            more = (False, True, f"stream {group}", group, operation, None)
        else:
            more = (on_host, False, stream or "stream 1")
        nodes.append(ChakraNode(own, "", float(seconds), tuple(after), *more))
    return nodes


@st.composite
def files(draw):
    """Nodes of one to three ranks, with as many collectives of each group on each."""
    calls = draw(CALLS)
    return [nodes_of(calls, each) for each in draw(st.lists(NODES, min_size=1, max_size=3))]


@settings(derandomize=True, deadline=None)
@given(ranks=files())
def test_each_node_begins_as_soon_as_it_may(ranks):
    """At the last end of what it waits for: nodes, the one before on its lane, other ranks."""
    times = replayed(ranks)
    meetings = {place: each for each in matched_collectives(ranks) for place in each}
    lanes = defaultdict(list)
    earliest = {}
    for rank, nodes in enumerate(ranks):
        for at, each in enumerate(nodes):
            earliest[rank, at] = max((times.end[rank][it] for it in each.after), default=0.0)
            lanes[rank, each.lane].append((rank, at))
    allowed = dict(earliest)
    for places in lanes.values():
        places.sort(key=lambda it: (times.start[it[0]][it[1]], times.end[it[0]][it[1]]))
        until = 0.0
        for rank, at in places:
            assert times.start[rank][at] >= until
            allowed[rank, at] = max(earliest[rank, at], until)
            until = times.end[rank][at]
    for place, first in allowed.items():
        rank, at = place
        members = meetings.get(place, (place,))
        assert times.start[rank][at] == max(allowed[it] for it in members) >= first
        shortest = min(ranks[it][its].seconds for it, its in members)
        assert times.end[rank][at] == times.start[rank][at] + shortest
    if len(ranks) > 1:
        assert len(meetings) == sum(each.is_collective for nodes in ranks for each in nodes)


def test_collectives_in_another_order_on_one_stream_are_refused():
    def nodes(*groups):
        return [
            ChakraNode(at, "", 1.0, (at - 1,), False, True, "stream 1", group, "all-reduce")
            for at, group in enumerate(groups)
        ]

    with pytest.raises(ImpossibleReplay, match="4 nodes or collectives wait for each other"):
        replayed([nodes("a", "b"), nodes("b", "a")])
    assert replayed([nodes("a", "b"), nodes("a", "b")]).end == [[1.0, 2.0]] * 2
    assert not matched_collectives([nodes("a", "a"), nodes("a")])


@given(data=st.data())
def test_damaged_files_are_refused(data):
    whole = one_rank(100, 10)
    at = data.draw(st.integers(0, len(whole) - 1))
    spoilt = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    for contents in (spoilt, whole[:at]):
        with suppress(InvalidFile):
            replayed([read_nodes(contents)])


@pytest.mark.slow
def test_a_public_trace_is_replayed(tmp_path):
    """As chakra_converter wrote it, of ResNet-50 on one rank of several."""
    if not os.environ.get(CHECKOUT):
        pytest.skip(f"needs {CHECKOUT}, the path of mlcommons/chakra at {COMMIT}")
    name = f"{COMMIT}:tests/data/feeder_tests_trace.tar.gz"
    data = subprocess.run(
        ["git", "-C", os.environ[CHECKOUT], "show", name], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        [member] = [it for it in archive.getmembers() if it.name.endswith("chakra.0.et")]
        path = tmp_path / Path(member.name).name
        path.write_bytes(archive.extractfile(member).read())
    nodes = read_nodes(path.read_bytes())
    assert (len(nodes), sum(each.on_host for each in nodes)) == (3664, 2448)
    [rank] = load_traces([path], "TRACE").ranks
    streams = rank.breakdown.by_stream
    for lane in ("stream 7", "stream 14"):
        own = [each.seconds for each in nodes if each.lane == lane]
        assert streams[lane][1] == pytest.approx(sum(own))
    parts = rank.breakdown.whole
    assert parts.communication == pytest.approx(0.036715)
    assert parts.seconds == pytest.approx(sum(parts[1:5]))
    assert parts.compute / parts.seconds > 0.9

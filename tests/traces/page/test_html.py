"""The page as a file: the data that it holds, read back here, and the text in it."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.traces.figures.appearance import fill
from bfpp.traces.figures.panel import Panel
from bfpp.traces.page.html import embeddable, page, write_html
from bfpp.traces.page.panel_data import packed
from tests.helpers.pages import HOSTILE, small

DTYPES = {
    "Int8Array": "<i1", "Int16Array": "<i2", "Int32Array": "<i4", "Float32Array": "<f4",
    "Float64Array": "<f8",
}  # fmt: skip


def content_of(text: str) -> Any:
    found = re.search(r'<script id="content" type="application/json">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])


def unpacked(table: dict[str, Any]) -> dict[str, np.ndarray]:
    data, columns = zlib.decompress(b64decode(table["data"])), {}
    for name, kind, length in table["columns"]:
        size = np.dtype(DTYPES[kind]).itemsize * length
        columns[name], data = np.frombuffer(data[:size], DTYPES[kind]), data[size:]
    assert not data
    return columns


def test_the_page_holds_every_task_with_its_dependencies() -> None:
    shown = small()
    graph = shown.graph
    [panel] = content_of(page([Panel("breadth-first", shown)], "A step"))["panels"]
    columns = unpacked(panel["columns"]) | unpacked(panel["times"])
    np.testing.assert_array_equal(columns["start"], shown.start)
    np.testing.assert_array_equal(columns["duration"], shown.duration)
    for name, expected in {
        "operation": graph.operation,
        "stage": graph.stage,
        "microbatch": graph.microbatch,
        "lane": graph.lane,
        "peerLane": graph.peer_lane,
    }.items():
        np.testing.assert_array_equal(columns[name], expected, name)
    bounds = np.concatenate([[0], np.cumsum(columns["dependencies"])])
    np.testing.assert_array_equal(bounds, graph.dependencies.start)
    task = np.repeat(np.arange(len(graph)), columns["dependencies"])
    np.testing.assert_array_equal(task - columns["dependency"], graph.dependencies.member)


def test_colours_are_those_of_every_figure() -> None:
    graph = small().graph
    [panel] = content_of(page([Panel("", small())], ""))["panels"]
    colour = unpacked(panel["columns"])["colour"]
    drawn = {
        (operation, microbatch): panel["colours"][index]
        for operation, microbatch, index in zip(
            graph.operation.tolist(), graph.microbatch.tolist(), colour.tolist(), strict=True
        )
    }
    assert drawn == {
        (operation, microbatch): fill(OPERATIONS[operation], microbatch, 32)
        for operation, microbatch in drawn
    }
    assert len(panel["inks"]) == len(panel["colours"])


def test_time_counts_from_the_first_start() -> None:
    late = replace(small(), start=small().start + 1e3, end=small().end + 1e3)
    [panel] = content_of(page([Panel("", late)], ""))["panels"]
    assert unpacked(panel["times"])["start"].min() == 0


@pytest.mark.parametrize(
    ("most", "kind"),
    [(127, "Int8Array"), (128, "Int16Array"), (32767, "Int16Array"), (32768, "Int32Array")],
)
def test_integers_travel_as_narrow_as_they_are(most: int, kind: str) -> None:
    values = np.array([-1, 0, most], dtype=np.int64)
    table = packed({"of a byte": np.array([1, 2, 3]), "values": values})
    assert ["values", kind, 3] in map(list, table["columns"])
    np.testing.assert_array_equal(unpacked(table)["values"], values)
    np.testing.assert_array_equal(unpacked(table)["of a byte"], [1, 2, 3])


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="32 bits"):
        packed({"values": np.array([2**31])})
    with pytest.raises(ValueError, match="finite"):
        packed({"values": np.array([0.0, np.nan])})
    with pytest.raises(ValueError, match="at least one panel"):
        write_html([], tmp_path / "page.html", "nothing")


def test_no_text_can_leave_its_place() -> None:
    text = embeddable({"title": HOSTILE})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"title": HOSTILE}
    with pytest.raises(ValueError, match="JSON"):
        embeddable([float("nan")])  # which no browser reads
    panel = Panel(HOSTILE, small(), HOSTILE, ((HOSTILE, HOSTILE),))
    whole = page([panel], HOSTILE)
    assert "<img" not in whole.replace(page([Panel("", small())], ""), "")
    assert HOSTILE not in whole
    assert content_of(whole)["panels"][0]["summary"] == [[HOSTILE, HOSTILE]]


def test_the_page_needs_nothing_beside_it() -> None:
    head = page([Panel("", small())], "").partition("<script>")[0]
    assert "default-src 'none'" in head
    assert not re.search(r"\b(src|href)=|@import|url\(", head)


def test_a_page_is_in_utf_8_wherever_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("io.text_encoding", lambda encoding, _=2: encoding or "ascii")
    write_html([Panel("größer", small())], tmp_path / "page.html", "Ein Schritt, größer")
    written = (tmp_path / "page.html").read_bytes()
    assert "Ein Schritt, größer".encode() in written

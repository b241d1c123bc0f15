"""The files that are written of a step worked out by hand (`tests.helpers.hand`), to the letter.

What a text of ours would only repeat is read by another program: Chakra's traces by protobuf, the
columns of a page by `array`.
"""

from __future__ import annotations

import json
import zlib
from array import array
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.hand import require_golden, words
from tests.traces.formats.test_exchange import attribute, read_by_others
from tests.traces.formats.test_exchange import schema as schema  # a fixture

TYPES = {"Int8Array": "b", "Int16Array": "h", "Int32Array": "i", "Float64Array": "d"}


@pytest.fixture(scope="module")
def files(
    printed: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Path]:
    """All that can be written of the step."""
    folder = tmp_path_factory.mktemp("written")
    names = {
        "perfetto": "perfetto.json", "timeline": "timeline.json", "graph": "graph.json",
        "kineto": "kineto", "chakra": "chakra", "html": "page.html", "svg": "step.svg",
    }  # fmt: skip
    paths = {name: folder / file for name, file in names.items()}
    options = [word for name, path in paths.items() for word in (f"--{name}", str(path))]
    printed("simulate", *words().split(), *options)
    return paths


def lines_of(record: Any) -> str:
    """A record's entries, and those of what it holds, a line each."""
    if not isinstance(record, dict):
        return f"{json.dumps(record)}\n"
    return "".join(
        "".join(f"{key}.{line}\n" for line in lines_of(value).splitlines())
        if isinstance(value, dict)
        else f"{key}: {json.dumps(value)}\n"
        for key, value in record.items()
    )


def test_a_graph(files: Mapping[str, Path]) -> None:
    require_golden("written/graph.txt", lines_of(json.loads(files["graph"].read_text())))


def test_a_timeline(files: Mapping[str, Path]) -> None:
    record = json.loads(files["timeline"].read_text())
    assert record.pop("graph") == json.loads(files["graph"].read_text())
    require_golden("written/timeline.txt", lines_of(record))


def test_a_trace_for_perfetto(files: Mapping[str, Path]) -> None:
    """A transfer is a slice at both ends; its arrow leaves the sender's (s), and ends (f) there."""
    record = json.loads(files["perfetto"].read_text())
    assert record.pop("taskGraph") == json.loads(files["graph"].read_text())
    events = "".join(f"{json.dumps(each)}\n" for each in record.pop("traceEvents"))
    require_golden("written/perfetto.txt", lines_of(record) + events)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_trace_as_of_torch_profiler(files: Mapping[str, Path], rank: int) -> None:
    """Kernels begin 34 ns late: 17 launches, one more than there are tasks, are 2 ns apart."""
    record = json.loads((files["kineto"] / f"kineto.{rank}.json").read_text())
    events = "".join(f"{json.dumps(each)}\n" for each in record.pop("traceEvents"))
    require_golden(f"written/kineto.{rank}.txt", lines_of(record) + events)


NODES = {
    # number, name, type (4 computes, 5 sends, 6 receives, 7 is a collective), those ahead on
    # lanes, dependencies, start and duration in milliseconds; a transfer: from, to, and tag
    0: """
        0 forward 0 4 [] [] 0 1000
        1 transfer activations 0 5 [] [0] 1000 500 0 1 1
        2 forward 1 4 [0] [] 1000 1000
        4 transfer activations 1 5 [1] [2] 2000 500 0 1 4
        6 transfer gradients 0 6 [] [] 4500 500 1 0 6
        7 backward 0 4 [2] [6] 5000 2000
        10 transfer gradients 1 6 [6] [] 7500 500 1 0 10
        13 backward 1 4 [7] [10] 8000 2000
        14 reduce 0 7 [] [13] 10000 250
        15 optimizer 4 [13] [14] 10250 125
    """,
    1: """
        1 transfer activations 0 6 [] [] 1000 500 0 1 1
        3 forward 0 4 [] [1] 1500 1000
        4 transfer activations 1 6 [1] [] 2000 500 0 1 4
        5 backward 0 4 [3] [3] 2500 2000
        6 transfer gradients 0 5 [] [5] 4500 500 1 0 6
        8 forward 1 4 [5] [4] 4500 1000
        9 backward 1 4 [8] [8] 5500 2000
        10 transfer gradients 1 5 [6] [9] 7500 500 1 0 10
        11 reduce 1 7 [] [9] 7500 250
        12 optimizer 4 [9] [11] 7750 125
    """,
}


@pytest.mark.parametrize("rank", NODES)
def test_a_chakra_trace(files: Mapping[str, Path], schema: Mapping[str, Any], rank: int) -> None:
    metadata, nodes = read_by_others((files["chakra"] / f"chakra.{rank}.et").read_bytes(), schema)
    assert metadata.version == "0.0.4"
    said = {name: attribute(metadata, name) for name in ("rank", "schedule", "bfpp.source")}
    assert said == {"rank": rank, "schedule": "1f1b", "bfpp.source": "compiled"}
    if rank == 0:
        graph = json.loads(attribute(metadata, "bfpp.graph"))
        assert graph == json.loads(files["graph"].read_text())
        assert json.loads(attribute(metadata, "bfpp.about"))["reduce"] == 0.25
    assert [line.split() for line in NODES[rank].strip().splitlines()] == [
        [*map(str, _described(node))] for node in nodes
    ]
    for node in nodes:
        assert attribute(node, "is_cpu_op") == 0
        assert attribute(node, "start_seconds") * 1e6 == node.start_time_micros
        end = node.start_time_micros + node.duration_micros
        assert attribute(node, "end_seconds") * 1e6 == end
        assert node.type != 7 or attribute(node, "comm_type") == 0  # an all-reduce


def _described(node: Any) -> Iterator[object]:
    assert node.start_time_micros % 1000 == node.duration_micros % 1000 == 0
    yield node.id
    yield from node.name.split()
    yield node.type
    yield [*node.ctrl_deps]
    yield [*node.data_deps]
    yield node.start_time_micros // 1000
    yield node.duration_micros // 1000
    if node.type in (5, 6):
        yield from (attribute(node, name) for name in ("comm_src", "comm_dst", "comm_tag"))


def unpacked(table: Mapping[str, Any]) -> dict[str, list[float]]:
    """The columns of a page, by another reader than the page and numpy."""
    data, columns = zlib.decompress(b64decode(table["data"])), {}
    for name, kind, length in table["columns"]:
        values = array(TYPES[kind])
        size = values.itemsize * length
        values.frombytes(data[:size])
        columns[name], data = values.tolist(), data[size:]
    assert not data
    return columns


def test_a_page(files: Mapping[str, Path]) -> None:
    text = files["html"].read_text()
    content = json.loads(text.split('type="application/json">', 1)[1].split("</script>", 1)[0])
    (panel,) = content["panels"]
    tables = "columns", "times", "waits"
    found = {name: unpacked(panel.pop(name)) for name in tables}
    for name in ("graph", "legend", "colours", "inks", "memory"):  # as in other figures and files
        panel.pop(name)
    panel.pop("causeNames")
    text = lines_of(content | {"panels": None}) + lines_of(panel) + lines_of(found)
    require_golden("written/page.txt", text)


def test_an_experiment(printed: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "step.toml"
    out = printed("experiment", *words().split(), "--p2p", "fifo", "--out", file)
    assert out == file.read_text()
    require_golden("written/experiment.toml", out)


# Figures


def test_a_step_is_drawn(files: Mapping[str, Path]) -> None:
    """From x = 44.4, below the ranks' names, to 714: 669.6 points for 10.375 s, 64.54 a second.

    So the second pass is from 108.94 to 173.48, and that of rank 1 begins at 44.4 + 1.5 x 64.54
    = 141.21; the tick of 10 s is at 689.8.
    """
    require_golden("drawn/step.svg", files["svg"].read_text())

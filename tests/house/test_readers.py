"""Files of strangers: whatever they hold, reading takes little time, little memory and one line."""

from __future__ import annotations

import gzip
import json
import sqlite3
import tracemalloc
from contextlib import closing
from io import BytesIO
from pathlib import Path
from time import process_time

import numpy
import pytest

from bfpp.executor.model.transformer.corpus import read_text
from bfpp.reports.explorer.answers import answer
from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.configuration import build_graph
from bfpp.schedules.formats.graph_json import read_graph, write_graph
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.reading import IN_MEMORY, LARGEST_FILE, SMALL, NotJson, parsed
from bfpp.traces.profiles.nsight import read_nsight
from bfpp.traces.profiles.profile import MalformedTrace
from tests.executor.model.test_hugging_face_weights import LLAMA
from tests.helpers.nsight_files import SCHEMA, Named, Seen, write_nsight

SECONDS = 5
"""Of processor time: what is not linear takes minutes."""

LONG = 400_000


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(LARGEST_FILE, raising=False)
    begun = process_time()
    yield
    assert process_time() - begun < SECONDS


def refused(answer: tuple[int, str, str]) -> str:
    """The one line of a refusal."""
    code, out, err = answer
    assert (code, out, err.count("\n")) == (2, "", 1)
    return err


# Compressed files and JSON


@pytest.mark.parametrize("command", ["show {}", "import {} --out out.json", "check {}"])
def test_a_compressed_file_does_not_grow_without_end(bfpp, command):
    mebibytes = 2 * SMALL // 2**20
    Path("bomb.json.gz").write_bytes(gzip.compress(bytes(2**20), 9) * mebibytes)
    tracemalloc.start()
    try:
        error = refused(bfpp(command.format("bomb.json.gz")))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "holds more than" in error or "is not" in error
    assert most < 2 * SMALL


def test_what_a_text_holds_is_bounded_before_it_is_made():
    packed = gzip.compress(b"[" + b"[]," * (SMALL // 4) + b"0]", 1)
    tracemalloc.start()
    try:
        with pytest.raises(NotJson, match="bytes of memory"):
            parsed(packed)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < IN_MEMORY * SMALL


def test_a_larger_file_is_read_where_it_is_asked_for(bfpp, monkeypatch):
    packed = gzip.compress(b'"' + b"a" * SMALL + b'"')
    with pytest.raises(NotJson, match=LARGEST_FILE):
        parsed(packed)
    monkeypatch.setenv(LARGEST_FILE, str(2 * SMALL))
    assert len(parsed(packed)) == SMALL
    Path("orders.json").write_text("{}")
    monkeypatch.setenv(LARGEST_FILE, "2 GB")
    assert f"{LARGEST_FILE}: must be a number of bytes, not '2 GB'" in refused(
        bfpp("show orders.json")
    )


@pytest.mark.parametrize("command", ["show {}", "import {} --out out.json", "check {}"])
def test_a_deep_text_is_refused_in_one_line(bfpp, command):
    Path("deep.json").write_text("[" * 200_000)
    refused(bfpp(command.format("deep.json")))


# Layouts and times


@pytest.mark.parametrize(
    "change", [{"pp": 2**31 - 1}, {"slices": 2**31 - 1}, {"microbatches": 2**31 - 1}]
)
def test_a_layout_is_no_larger_than_its_file(change):
    record = json.loads(write_graph(build_graph("1f1b", Layout(2, 4))))
    record["layout"] |= change
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=next(iter(change))):
            read_graph(json.dumps(record))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2**22


def test_a_layout_of_many_ranks_takes_no_memory_for_those_without_a_stage():
    with pytest.raises(ValueError, match="rank 2 holds no stage"):
        Layout(2**31 - 1, 4, placement=(0, 1))


@pytest.mark.parametrize("option", ["--html out.html", "--json", "--perfetto out.json"])
def test_times_without_end_are_refused(bfpp, option):
    assert bfpp("simulate gpipe --pp 2 --timeline step.json")[0] == 0
    record = json.loads(Path("step.json").read_text())
    record["end"][-1] = 1e308
    Path("step.json").write_text(json.dumps(record))
    assert "FILE: end holds more than" in refused(bfpp(f"show step.json {option}"))


# SQLite


ENDLESS = """
    CREATE TABLE StringIds (id, value);
    CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE
        each(text, textId, globalTid, start, end, eventType) AS (
            SELECT 'a', 1, 1, 1, 2, 59 UNION ALL SELECT * FROM each)
        SELECT * FROM each;
"""
COMPUTED = """
    CREATE TABLE NVTX_EVENTS (
        textId, globalTid, start, end, eventType,
        text AS (hex(zeroblob(400000))));
    WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000)
        INSERT INTO NVTX_EVENTS SELECT 1, 1, 1, 2, 59 FROM numbers;
"""


def database(script: str) -> Path:
    path = Path("trace.sqlite")
    with closing(sqlite3.connect(path)) as made, made:
        made.executescript(script)
    return path


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (ENDLESS, "holds neither NVTX ranges nor kernels"),
        (COMPUTED, "holds more than its size"),
        (SCHEMA, "holds neither NVTX ranges nor kernels"),
        ("CREATE VIRTUAL TABLE NVTX_EVENTS USING fts5(text)", "holds neither NVTX ranges"),
    ],
    ids=["view", "computed", "empty", "virtual"],
)
def test_tables_are_read_as_tables(bfpp, script, reason):
    path = database(script)
    assert reason in refused(bfpp(f"import {path} --out out.json"))


def test_strings_of_one_number_do_not_multiply_rows():
    rows = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 2000)"
    path = database(
        SCHEMA.replace("NOT NULL PRIMARY KEY", "")
        + f"{rows} INSERT INTO StringIds SELECT 1, 'PP:0F0' FROM t;"
        + f"{rows} INSERT INTO NVTX_EVENTS SELECT 1, 2, 59, 0, NULL, 1 << 24, 0, 1, 0 FROM t;"
    )
    [process] = read_nsight(path)
    assert len(process.annotations) == 2000


def test_a_query_has_a_time_limit(monkeypatch):
    path = write_nsight(Path("trace.sqlite"), [Seen(0, [Named("a", 0, 1)] * 1000)])
    monkeypatch.setattr("bfpp.traces.profiles.nsight.SECONDS", -1e9)
    monkeypatch.setattr("bfpp.traces.profiles.nsight.STEPS", 1)
    with pytest.raises(MalformedTrace, match="interrupted"):
        read_nsight(path)


@pytest.mark.parametrize("name", [", sizes = " * (LONG // 10) + "\nx", ", seq = 1" * (LONG // 9)])
def test_long_names_take_linear_time(name):
    path = write_nsight(Path("trace.sqlite"), [Seen(0, [Named(name, 0, 1), Named("a", 0, 1)])])
    assert read_nsight(path)


# Text


@pytest.mark.parametrize(
    "line",
    [
        "0F0,0B0,1UNSHARD" + "1" * LONG,
        "0F0,0B0," + "1" * 5000 + "SEND_F0",
        "0F0,0B0,(" + "(" * LONG + ";" + ")" * LONG,
        "# slices = " + "1" * 5000 + "\n0F0,0B0",
    ],
    ids=["many digits", "a large number", "a block", "slices"],
)
def test_orders_take_linear_time(bfpp, line):
    Path("orders.csv").write_text(f"{line}\n")
    assert len(refused(bfpp("simulate orders.csv"))) < 250


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a." * 100_000 + "a = 1", "a key of more than 1000 parts"),
        ("[" + '"!".' * 100_000 + "a]", "a key of more than 1000 parts"),
        ("[" + "1." * 100_000 + "1]", "a key of more than 1000 parts"),
        ("pp = 0x" + "f" * 50_000, "more than 64 bits"),
        ("pp = [" + "[" * 50_000, "is not TOML"),
    ],
    ids=["key", "quoted", "digits", "hexadecimal", "deep"],
)
def test_toml_takes_linear_time(bfpp, text, reason):
    Path("experiment.toml").write_text(f"{text}\n")
    assert reason in refused(bfpp("check experiment.toml"))


def test_long_lists_of_numbers_are_no_keys(bfpp):
    numbers = ", ".join(["0.5"] * 5000)
    Path("experiment.toml").write_text(f"schedule = 'gpipe'\nunknown = [{numbers}]\n")
    assert "no such value" in refused(bfpp("check experiment.toml"))


# Traces


def event(**changed: object) -> dict[str, object]:
    return {"ph": "X", "cat": "user_annotation", "name": "PP:0F0", "pid": 1, "tid": 1, "ts": 1,
            "dur": 1, **changed}  # fmt: skip


@pytest.mark.parametrize(
    "trace",
    [
        {"traceEvents": [event(ts=float("nan"))]},
        {"traceEvents": [event(dur=float("inf"))]},
        {"traceEvents": [event(ts=1e300)]},
        {"traceEvents": [event(pid=[])]},
        {"traceEvents": [event(name="step " + "1" * 5000)]},
        {"traceEvents": [event(name="F" + "1" * 5000)]},
        {"traceEvents": [1]},
        {"traceEvents": [event()], "baseTimeNanoseconds": 1e300},
        {"traceEvents": [event()], "baseTimeNanoseconds": float("inf")},
        {"traceEvents": [event()], "otherData": []},
        {"traceEvents": [], "otherData": {"generator": "bfpp"}, "bfpp graph": []},
    ],
)
def test_odd_traces_are_refused_in_one_line(bfpp, trace):
    Path("trace.json").write_text(json.dumps(trace))
    refused(bfpp("import trace.json --out out.json"))


def test_an_array_of_tokens_is_an_array_and_no_archive():
    numpy.save("tokens.npy", numpy.arange(5))
    whole = Path("tokens.npy").read_bytes()
    assert list(read_text(Path("tokens.npy"))) == [0, 1, 2, 3, 4]
    before, after = whole.split(b"(5,), }")
    packed = BytesIO()
    numpy.savez(packed, tokens=numpy.arange(5))
    shapes = [b"(9**9,), }", b"(-1,), }", b"(1" + b"0" * 30 + b",), }", b"('a',), }", b"(" * 40]
    broken = [before + shape.ljust(7 + len(after), b" ")[: 7 + len(after)] for shape in shapes]
    for content in (b"", b"PK\x03\x04", packed.getvalue(), whole[:-1], *broken):
        Path("tokens.npy").write_bytes(content)
        with pytest.raises(InvalidConfiguration, match=r"text: tokens\.npy"):
            read_text(Path("tokens.npy"))


# Weights


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("[" * 200_000, "cannot be read"),
        ('{"weight_map": [1]}', "has no weight_map"),
        ('{"weight_map": {"a": "../../secret"}}', "'../../secret' is no file of its folder"),
        ('{"weight_map": {}}', "has no model.embed_tokens.weight"),
        (
            '{"weight_map": {"model.embed_tokens.weight": "torn.safetensors"}}',
            "'torn.safetensors' cannot be read",
        ),
    ],
    ids=["deep", "list", "outside", "empty", "torn"],
)
def test_weights_are_refused_before_a_process_starts(bfpp, index, reason):
    Path("config.json").write_text(json.dumps(LLAMA))
    Path("model.safetensors.index.json").write_text(index)
    Path("torn.safetensors").write_bytes(b"\xff" * 100)
    assert reason in refused(bfpp("run 1f1b --pp 2 --model config.json --weights ."))


# Code


EVIL = """
from pathlib import Path
from bfpp.schedules.families.one_forward_one_backward import OneForwardOneBackward
Path("ran").touch()

class Evil(OneForwardOneBackward):
    name = "evil"

SCHEDULE = Evil()
"""


@pytest.fixture
def evil() -> str:
    Path("evil.py").write_text(EVIL)
    Path("inner").mkdir()
    Path("inner/experiment.toml").write_text('schedule = "../evil.py:SCHEDULE"\npp = 2\n')
    return "inner/experiment.toml"


@pytest.mark.parametrize(
    "command",
    [
        "check {}",
        "check {} --help",
        "simulate {}",
        "compare gpipe {}",
        "explain {}",
        "explain gpipe --against {}",
        "orders {}",
        "experiment {}",
        "schedule {}",
        "run {}",
    ],
)
def test_code_that_a_file_names_is_not_run_unless_it_is_trusted(bfpp, evil, command):
    error = refused(bfpp(command.format(evil)))
    assert not Path("ran").exists()
    assert f"{evil} names Python code to be run, inner/../evil.py:SCHEDULE: --trust" in error


@pytest.mark.parametrize("command", ["check", "simulate", "compare", "explain", "orders"])
def test_code_that_is_trusted_or_named_runs(bfpp, evil, command):
    assert bfpp(f"{command} {evil} --trust")[0] == 0
    Path("ran").unlink(missing_ok=True)
    assert bfpp(f"{command} evil.py:SCHEDULE --pp 2")[0] == 0


def test_against_a_trusted_file(bfpp, evil):
    assert bfpp("explain", evil, "--trust", "--against", "--microbatches 4")[0] == 0
    assert bfpp("explain", "gpipe", "--trust", "--against", evil)[0] == 0


@pytest.mark.usefixtures("evil")
@pytest.mark.parametrize("command", ["validate", "fit"])
def test_tables_name_no_code_unless_they_are_trusted(bfpp, command):
    Path("table.csv").write_text(
        "model,cluster,schedule,pp,microbatches,step_seconds\n"
        "bert-6.6b,dgx1-v100,evil.py:SCHEDULE,2,4,1\n"
    )
    assert "table.csv: line 2" in refused(bfpp(f"{command} table.csv"))
    assert not Path("ran").exists()
    assert "--trust" not in bfpp(f"{command} table.csv --trust")[2]
    assert Path("ran").exists()


@pytest.mark.usefixtures("evil")
def test_orders_name_no_code(bfpp):
    Path("orders.csv").write_text("# schedule = evil.py:SCHEDULE\n0F0,0B0\n")
    refused(bfpp("simulate orders.csv"))
    assert not Path("ran").exists()


@pytest.mark.usefixtures("evil")
def test_a_journal_names_no_code(bfpp):
    search = (
        "search --model bert-6.6b --cluster dgx1-v100 --gpus 8 --batch 8 --json --journal found"
    )
    search += " --fix tp=2 --fix pp=2 --fix microbatch_size=1"
    assert bfpp(f"{search} --schedule gpipe --schedule evil.py:SCHEDULE")[0] == 0
    Path("ran").unlink()
    Path("other.py").write_text(EVIL)
    Path("found").write_text(Path("found").read_text().replace("evil.py", "other.py"))
    assert bfpp(f"{search} --schedule gpipe")[0] == 0
    assert not Path("ran").exists()


def test_a_page_names_no_files():
    wrong = answer({"orders": "# profile = /etc/hostname.toml\n0F0,0B0\n"})["wrong"]
    assert wrong["field"] == "profile"
    assert "a page does not name" in wrong["reason"]

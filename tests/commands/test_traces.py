"""Traces on the command line: ranks of any parallelism, alone, as replicas, or as a pipeline."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bfpp.schedules import Layout
from bfpp.traces.profiles.device_profile import ActivityKind
from tests.helpers.device_traces import Ran, device_trace, event, events_of
from tests.helpers.nsight_files import write_nsight
from tests.traces.profiles.test_import import simulated
from tests.traces.profiles.test_import_nsight import by_pytorch, seen

COMPUTE, COMMUNICATION, COPY = ActivityKind
GROUP = {"Collective name": "allreduce", "Process Group Name": "0", "Group size": 2}
RAN = [
    Ran(COMPUTE, 0, 10, launched=-5), Ran(COMMUNICATION, 8, 30, 20, launched=1),
    Ran(COMPUTE, 32, 40, launched=31), Ran(COPY, 38, 42, launched=2),
]  # fmt: skip
PARTS = {"seconds": 42, "compute": 18, "exposed_communication": 20, "exposed_copies": 2, "idle": 2}


def training(rank: int) -> list[dict]:
    """A forward and a backward operator, whose kernels are those of a data-parallel rank."""
    name = "autograd::engine::evaluate_function: MmBackward0"
    return [
        event("cpu_op", "aten::mm", -6, 0),
        {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "ts": -6 + rank / 8, "pid": 1, "tid": 1},
        event("cpu_op", name, 31, 33),
        *events_of(*RAN, **GROUP),
    ]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every test runs in a folder of its own, with traces of two replicas and of a host."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for rank in range(2):
        trace = device_trace(training(rank), rank=rank, world_size=2)
        Path(f"replica.{rank}.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
    host = device_trace([event("cpu_op", "aten::mm", 0, 9)], rank=0)
    Path("host.json").write_text(json.dumps(host))


def test_one_rank_is_enough(answer):
    (rank,) = answer("explain replica.0.json.gz")["traces"]
    for part, microseconds in PARTS.items():
        assert rank[part] == pytest.approx(microseconds / 1e6), part
    assert (rank["rank"], rank["world_size"], rank["steps"]) == (0, 2, [])
    (group,) = rank["groups"]
    assert (group["name"], group["size"], group["ranks"], group["bytes"]) == ("0", 2, None, None)
    assert group["exposed"] == pytest.approx(20e-6)


def test_a_pass_has_holes(answer):
    """From its first kernel to its last, the forward pass is open; it computes for less."""
    (rank,) = answer("explain replica.0.json.gz")["traces"]
    forward, backward = (rank["passes"][name] for name in ("forward", "backward"))
    assert forward["compute"] == pytest.approx(10e-6)
    assert backward["seconds"] == pytest.approx(8e-6)
    holes = Ran(COMPUTE, 50, 60, launched=-4)
    trace = device_trace([*training(0), *events_of(*[Ran(COPY, 0, 0)] * 4, holes)[4:]])
    Path("holes.json").write_text(json.dumps(trace))
    (rank,) = answer("explain holes.json")["traces"]
    forward = rank["passes"]["forward"]
    assert forward["seconds"] == pytest.approx(60e-6)
    assert forward["compute"] == pytest.approx(28e-6)
    assert forward["idle"] == pytest.approx(10e-6)


def test_data_parallel_ranks_are_replicas_and_not_stages(answer, bfpp):
    found = answer("explain replica.1.json.gz replica.0.json.gz")
    assert [each["rank"] for each in found["traces"]] == [0, 1]
    assert found["pipeline"] is None
    assert "replicas or shards" in found["no_pipeline"]
    code, out, err = bfpp("explain replica.0.json.gz replica.1.json.gz")
    assert (code, err) == (0, "")
    assert "18 µs (42.9%)" in out
    assert "Not measured, rank 1 of 2: The message size of 1 communication kernels." in out


def test_replicas_are_not_imported_as_stages(bfpp):
    code, _, err = bfpp("import replica.0.json.gz replica.1.json.gz --out step.json")
    assert (code, err.count("\n")) == (2, 1)
    assert "they are replicas or shards, not stages; bfpp explain TRACE..." in err
    assert not Path("step.json").exists()


def test_an_imported_step_says_how_much_of_its_passes_is_compute(bfpp):
    holes = [*training(0), event("kernel", "gemm", 50, 60, device=0, stream=7, correlation=1)]
    Path("holes.json").write_text(json.dumps(device_trace(holes)))
    assert bfpp("import holes.json --out step.json")[0] == 0
    assert "28 µs of 60 µs, the rest are holes" in bfpp("explain step.json")[1]


def test_a_host_alone_has_nothing_measured(answer, bfpp):
    (rank,) = answer("explain host.json")["traces"]
    assert [rank[part] for part in PARTS] == [None] * len(PARTS)
    assert (rank["waiting"], rank["launch_delay"], rank["passes"]) == (None, None, None)
    out = bfpp("explain host.json")[1]
    assert "not measured" in out
    assert "0 s" not in out


def test_ranks_of_a_pipeline_are_explained_as_one(answer, bfpp):
    bfpp("simulate 1f1b --pp 2 --microbatches 4 --transfer 0.25 --kineto out")
    found = answer("explain out/kineto.0.json out/kineto.1.json")
    assert found["no_pipeline"] is None
    pipeline = found["pipeline"]
    bfpp("import out/kineto.0.json out/kineto.1.json --out step.json")
    imported = answer("explain step.json")
    for key in ("step_time", "critical_path", "sensitivities"):
        assert pipeline[key] == imported[key]
    compute = sum(each["compute"] for each in pipeline["within_passes"]) / 2
    assert pipeline["shares"]["compute"] == pytest.approx(compute, rel=1e-3)
    assert sum(pipeline["shares"].values()) == pytest.approx(pipeline["step_time"])
    assert "The ranks are a pipeline" in bfpp("explain out/kineto.0.json out/kineto.1.json")[1]


def test_a_rank_of_a_pipeline_alone_is_said_to_be_one(answer, bfpp):
    bfpp("simulate 1f1b --pp 2 --microbatches 4 --transfer 0.25 --kineto out")
    found = answer("explain out/kineto.1.json")
    assert found["pipeline"] is None
    assert found["no_pipeline"].startswith("one rank of a pipeline, alone")
    assert found["traces"][0]["passes"]["forward"]["passes"] == 4


def test_nsights_processes_are_ranks(answer):
    timeline = simulated("1f1b", Layout(2, 4))
    write_nsight(Path("both.sqlite"), [seen(timeline, rank, by_pytorch) for rank in range(2)])
    found = answer("explain both.sqlite")
    assert [each["profiler"] for each in found["traces"]] == ["Nsight Systems"] * 2
    assert found["pipeline"]["step_time"] == pytest.approx(timeline.step_time)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("explain replica.0.json.gz nowhere.json", "TRACE: nowhere.json: No such file"),
        ("explain replica.0.json.gz --pp 2", "pp: a trace is as it ran"),
        ("explain replica.0.json.gz --set forward=x2", "set: is of a timeline"),
        ("explain gpipe replica.0.json.gz", "TRACE: replica.0.json.gz: further files"),
        ("explain cut.json.gz", "TRACE: cut.json.gz: cannot be decompressed"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(bfpp, words, reason):
    Path("cut.json.gz").write_bytes(Path("replica.0.json.gz").read_bytes()[:-20])
    code, out, err = bfpp(words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err

"""Public traces: answers of two other programs, and an answer to all that can be read.

The traces are read from checkouts, whose paths two variables of the environment name; two tables
have the answers of HolisticTraceAnalysis 0.5.0 and of TraceLens to them. All three are made to
count alike:

- HolisticTraceAnalysis takes all that has a stream to be a device's, so operators of the host (as
  Triton's; `operators`) and waits for events (`waits`); and drops kernels that the host launched
  before the trace began (`launched`).
- TraceLens takes memory sets to be compute.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bfpp.api.recorded.kernels import load_traces
from bfpp.schedules import InvalidInput
from bfpp.schedules.reading import read_file
from bfpp.traces.formats.text_files import parsed_trace
from bfpp.traces.kernels.breakdown import Breakdown
from bfpp.traces.profiles.device_profile import ActivityKind
from bfpp.traces.profiles.kineto_activities import COPIES, KERNELS, read_kineto_activities
from docs.generate.sessions import ROOT

TABLE, TRACELENS = (
    json.loads(Path(__file__).with_name(f"{name}_answers.json").read_text())
    for name in ("hta", "tracelens")
)
LIST = ROOT / "docs" / "public-traces.md"
HOST_ALONE, NOT_TRIED = "yes: the host alone", "not tried"
CHECKOUTS = {
    "facebookresearch/HolisticTraceAnalysis": "BFPP_HTA_CHECKOUT",
    "AMD-AGI/TraceLens": "BFPP_TRACELENS_CHECKOUT",
}
"""Variables of the environment, by repository."""

WITH_A_STREAM = {"operators", "waits"}
NO_COMPUTE = re.compile("Sync|Stream Wait Event|dma")
"""Names of what HolisticTraceAnalysis takes to be on a device, but not to compute."""

NO_TRACES = ("cpu_op_map", "execution_details", "_et.json", ".raw.gz")
"""Names of other files in the folders of traces."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=CHECKOUTS)
def repository(request) -> tuple[str, Path]:
    """A repository's name and where it is checked out."""
    variable = CHECKOUTS[request.param]
    if not os.environ.get(variable):
        commit = TABLE["commits"][request.param]
        pytest.skip(f"needs {variable}, the path of {request.param} at {commit}")
    return request.param, Path(os.environ[variable])


def counted(breakdown, trace, counts):
    """The parts of a trace as HolisticTraceAnalysis counts them."""
    if counts == "launched":
        return breakdown.launched_in_steps
    if counts not in WITH_A_STREAM:
        return breakdown.whole
    for event in trace["traceEvents"]:
        stream = (event.get("args") or {}).get("stream", -1)
        if event.get("ph") == "X" and int(stream) != -1 and event["cat"] not in KERNELS | COPIES:
            event["cat"] = "gpu_memcpy" if NO_COMPUTE.search(event["name"]) else "kernel"
    return Breakdown(read_kineto_activities(trace)).whole


def test_times_are_those_of_holistic_trace_analysis(repository):
    name, folder = repository
    for file, (idle, compute, seconds, overlap, counts) in TABLE["answers"][name].items():
        (rank,) = load_traces([folder / file], file).ranks
        parts = counted(rank.breakdown, parsed_trace(read_file(folder / file)), counts)
        own = (parts.idle, parts.compute, parts.seconds)
        answers = (idle / 1e6, compute / 1e6, seconds / 1e6)
        assert own == pytest.approx(answers, rel=0.01, abs=1e-8), file
        if overlap is not None:
            share = 100 * parts.overlapped_communication / parts.communication
            assert share == pytest.approx(overlap, rel=0.01, abs=0.01), file


def test_times_are_those_of_tracelens(repository):
    name, folder = repository
    assert len(TRACELENS["answers"][name]) > 20
    for file, answers in TRACELENS["answers"][name].items():
        (rank,) = load_traces([folder / file], file).ranks
        devices = rank.devices
        sets = np.array([each.lower().startswith("memset") for each in devices.names], dtype=bool)
        kind = np.where(sets[devices.name], ActivityKind.COMPUTE, devices.kind).astype(np.int32)
        parts = Breakdown(replace(devices, kind=kind)).whole
        own = (
            parts.seconds, parts.compute, parts.exposed_communication, parts.exposed_copies,
            parts.idle, parts.communication, parts.copies,
        )  # fmt: skip
        assert own == pytest.approx([each / 1e6 for each in answers], rel=0.01, abs=1e-8), file


def listed(name):
    """The files of a repository in the documentation's list, and what it says of each."""
    section = LIST.read_text(encoding="utf-8").partition(f"## {name}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(.+?)` \| ([^|]+?) \|", section, re.MULTILINE))


def test_the_list_says_of_each_trace_whether_it_is_answered(repository):
    name, folder = repository
    said = listed(name)
    assert TABLE["commits"][name] in LIST.read_text(encoding="utf-8")
    files = {
        path.relative_to(folder / "tests").as_posix(): path
        for path in sorted((folder / "tests").rglob("*"))
        if path.name.endswith((".json", ".json.gz", ".xplane.pb"))
        and not any(each in path.name for each in NO_TRACES)
    }
    assert files.keys() == {file for file, answer in said.items() if answer != NOT_TRIED}
    for file, path in files.items():
        assert said[file] == answer_to(path), file


def answer_to(path):
    """An answer in the list's words; nothing in it may be a number that was not measured."""
    try:
        found = load_traces([path], path.name)
    except InvalidInput:
        return "no"
    for rank in found.ranks:
        record = rank.record()
        parts = [record[each] for each in ("seconds", "compute", "idle", "communication")]
        assert parts.count(None) == (0 if rank.is_measured else len(parts)), path
    return "yes" if all(each.is_measured for each in found.ranks) else HOST_ALONE


def test_nine_of_ten_that_were_tried_are_answered():
    said = [each for name in CHECKOUTS for each in listed(name).values() if each != NOT_TRIED]
    assert len(said) > 50
    assert sum(each != "no" for each in said) >= 0.9 * len(said)

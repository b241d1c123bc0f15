"""Saved timelines on the command line: written by simulate, shown, and laid over one another."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bfpp.command_line import main
from bfpp.schedules import Layout, build_graph
from bfpp.traces.formats.timeline_json import load_timeline, save_timeline
from tests.helpers.measured import executed

HOSTILE = "[red]x[/red]<script>\x1b[31m\n"
SIMULATE = "simulate gpipe --pp 2 --microbatches 3 --transfer 0.5 --json"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every test runs in a folder of its own, with a simulated and a measured timeline."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*SIMULATE.split(), "--timeline", "simulated.json"]) == 0
    graph = build_graph("gpipe", Layout(2, 3))
    save_timeline(executed(graph, 0), "measured.json.gz")
    return tmp_path


def test_a_simulated_timeline_is_shown_as_it_was_simulated(answer):
    simulated, shown = answer(SIMULATE.removesuffix("--json")), answer("show simulated.json")
    for name in ("schedule", "step_time", "bubble", "tasks"):
        assert shown[name] == simulated[name]
    assert shown["source"] == simulated["engine"]
    assert shown["about"]["transfer"] == 0.5
    assert shown["digest"] == load_timeline("simulated.json").graph.digest
    for rank, as_simulated in zip(shown["ranks"], simulated["ranks"], strict=True):
        assert sum(rank.pop("causes").values()) == rank["idle"]
        assert rank == as_simulated


def test_a_model_is_remembered(bfpp, answer):
    words = "--model bert-6.6b --cluster dgx1-v100 --dp 2 --timeline model.json.gz"
    assert bfpp(f"simulate gpipe {words}")[0] == 0
    about = answer("show model.json.gz")["about"]
    assert (about["model"], about["cluster"], about["dp"]) == (
        "bert-6.6b", "dgx1-v100", 2,
    )  # fmt: skip


def test_a_measured_timeline_is_shown(bfpp, answer):
    shown = answer("show measured.json.gz")
    assert (shown["source"], shown["about"]) == ("measured", {"host": "here"})
    code, out, _ = bfpp("show measured.json.gz")
    assert code == 0
    assert "gpipe: 2 ranks, 3 micro-batches\n" in out
    assert "host" in out
    assert "dispatch" in out.split("Idle time of each rank by cause")[1].splitlines()[1]


def test_everything_can_be_made_of_a_saved_timeline(bfpp):
    words = "--html a.html --svg a.svg --perfetto a.json --timeline b.json --graph g.json --text"
    code, out, err = bfpp(f"show measured.json.gz {words}")
    assert (code, err.count("wrote ")) == (0, 5)
    assert "rank 0  compute " in out
    assert "<html" in Path("a.html").read_text()
    assert ElementTree.parse("a.svg").getroot().tag.endswith("svg")
    assert json.loads(Path("a.json").read_text())["otherData"]["source"] == "measured"
    assert load_timeline("b.json").about == {"host": "here"}
    assert bfpp("check g.json") == (0, "valid\n", "")


def test_hostile_names_in_a_file_are_escaped(bfpp):
    timeline = load_timeline("simulated.json")
    graph = replace(timeline.graph, schedule=HOSTILE)
    hostile = replace(timeline, graph=graph, source=HOSTILE, about={HOSTILE: HOSTILE})
    save_timeline(hostile, "hostile.json")
    for line in ("show hostile.json --html h.html --svg h.svg", "diff hostile.json simulated.json"):
        code, out, err = bfpp(line)
        assert code == 0
        assert "\x1b" not in out + err
    assert "]<script>" not in Path("h.html").read_text()
    ElementTree.parse("h.svg")


TASK = {
    "operation", "number", "rank", "peer", "stage", "unit", "microbatch", "simulated_duration",
    "measured_duration", "duration_difference", "simulated_start", "measured_start", "drift",
}  # fmt: skip


@pytest.mark.parametrize(
    "files", ["simulated.json measured.json.gz", "measured.json.gz simulated.json"]
)
def test_a_prediction_beside_its_measurement(answer, files):
    simulated, measured = load_timeline("simulated.json"), load_timeline("measured.json.gz")
    found = answer(f"diff {files}")
    assert found["simulated_step_time"] == simulated.step_time
    assert found["measured_step_time"] == measured.step_time
    error = simulated.step_time / measured.step_time - 1
    assert found["step_time_error"] == pytest.approx(error)
    assert (found["simulated_source"], found["measured_source"]) == ("compiled", "measured")
    forward = found["operations"]["forward"]
    assert forward["count"] == 6
    assert (forward["simulated_mean"], forward["simulated_total"]) == (1, 6)
    assert forward["error"] == pytest.approx(6 / forward["measured_total"] - 1)
    assert len(found["lanes"]) == len(simulated.graph.lanes)
    assert found["lanes"][0]["lane"] == "compute"
    assert found["lanes"][0]["simulated_busy"] == 9
    assert [rank["simulated_compute_time"] for rank in found["ranks"]] == [9, 9]
    assert found["mean_rank"]["dispatch"]["simulated_seconds"] == 0
    assert found["mean_rank"]["dispatch"]["measured_seconds"] > 0
    assert found["worst"][0].keys() == found["drifted"][0].keys() == TASK


def test_a_difference_in_words_and_pictures(bfpp):
    line = "diff simulated.json measured.json.gz --html d.html --svg d.svg --text"
    code, out, err = bfpp(line)
    assert (code, err.count("wrote ")) == (0, 2)
    for words in ("gpipe: 2 ranks", "simulated", "measured", "dispatch", "Tasks whose start"):
        assert words in out
    page = Path("d.html").read_text()
    assert '"Simulated"' in page
    assert "source measured, host here" in page
    assert "Measured" in Path("d.svg").read_text()


def test_two_simulated_timelines_are_named_by_their_sources(bfpp):
    words = SIMULATE.replace("0.5", "0.25").replace("--json", "--engine simpy")
    assert bfpp(f"{words} --timeline other.json")[0] == 0
    out = bfpp("diff simulated.json other.json")[1]
    assert "first (compiled)" in out
    assert "second (simpy)" in out


REPLICAS = "simulate 1f1b --pp 2 --dp 3 --microbatches 4 --reduce 0.4"


def test_all_replicas_are_saved_shown_and_compared(bfpp, answer):
    for name, slow in (("one", "rank=1,replica=1:1.3"), ("other", "rank=1,replica=2:1.6")):
        assert bfpp(f"{REPLICAS} --slow {slow} --timeline {name}.json")[0] == 0
    found = answer("diff one.json other.json")
    compute = [(each["simulated_compute"], each["measured_compute"]) for each in found["replicas"]]
    assert compute == [pytest.approx(each) for each in ((12, 12), (13.8, 12), (12, 15.6))]
    waits = [(each["simulated_waits"], each["measured_waits"]) for each in found["replicas"]]
    assert waits == [pytest.approx(each) for each in ((3.6, 7.2), (0, 7.2), (3.6, 0))]
    assert found["ranks"][1]["simulated_compute_time"] == pytest.approx(15.6)
    assert found["ranks"][1]["measured_compute_time"] == pytest.approx(12)
    of_other = answer("diff one.json other.json --replica 2")
    assert of_other["ranks"][1]["measured_compute_time"] == pytest.approx(19.2)
    assert answer("show one.json --replica 0")["ranks"][1]["compute_time"] == 12
    out = bfpp("show one.json --text --svg replicas.svg")[1]
    assert re.search(r"^0, 2 +12 s +3.6 s$", out, re.MULTILINE)
    assert "replica 0, and 1 like it" in Path("replicas.svg").read_text()
    assert "waits" in bfpp("diff one.json other.json")[1]
    assert answer("diff simulated.json simulated.json")["replicas"] == []
    for line, words in {
        "show one.json --replica 3": "--replica: there is no 3: they are 0 to 2",
        "diff simulated.json one.json --replica 0": "--replica: the timeline has one replica",
    }.items():
        code, _, err = bfpp(line)
        assert (code, err.count("\n")) == (2, 1)
        assert words in err


ERRORS = {
    "show": "the following arguments are required: FILE",
    "show nowhere": "FILE: nowhere: No such file",
    "show .": "FILE: .*: Is a directory",
    "show trace": "FILE: is a trace: bfpp import makes a timeline of it",
    "show other": 'FILE: is not a timeline: it has no "format"',
    "show simulated.json --text --json": "--text: cannot be printed together with --json",
    "show simulated.json --timeline no/where": "argument --timeline: must end in .json or .json.gz",
    "diff simulated.json": "the following arguments are required: MEASURED",
    "diff nowhere simulated.json": "SIMULATED: nowhere: No such file",
    "diff simulated.json other": "MEASURED: is not a timeline",
    "diff simulated.json longer.json": r"different steps; .* micro-batches \(3 and 4\)",
}


@pytest.mark.parametrize(("line", "reason"), ERRORS.items())
def test_errors_are_one_line_that_names_the_file(bfpp, line, reason):
    Path("other").write_text("{}")
    Path("trace").write_text('{"traceEvents": []}')
    graph = build_graph("gpipe", Layout(2, 4))
    save_timeline(executed(graph, 0), "longer.json")
    code, out, err = bfpp(line)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert re.search(reason, err), err


def test_steps_of_no_length(bfpp, answer):
    words = "simulate gpipe --pp 2 --microbatches 3 --forward 0 --backward 0 --timeline still.json"
    assert bfpp(words)[0] == 0
    assert bfpp("show still.json --text --svg still.svg")[0] == 0
    assert bfpp("diff measured.json.gz still.json")[0] == 0
    found = answer("diff still.json still.json")
    assert (found["step_time_error"], found["worst"], found["drifted"]) == (None, [], [])

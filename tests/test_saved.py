"""Saved timelines on the command line: written by simulate, shown, and laid over one another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from measured import executed

from bfpp.command_line import main
from schedules import Layout, build_graph
from traces.timeline_file import load_timeline, save_timeline

HOSTILE = "[red]x[/red]<script>\x1b[31m\n"
SIMULATE = "simulate gpipe --pp 2 --microbatches 3 --transfer 0.5 --json"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every test runs in a folder of its own, with a simulated and a measured timeline."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*SIMULATE.split(), "--timeline", "simulated.json"]) == 0
    graph = build_graph("gpipe", Layout(2, 3, 1, "contiguous"))
    save_timeline(executed(graph, 0), "measured.json.gz")
    return tmp_path


@pytest.fixture
def bfpp(capsys):
    """Runs a command: exit code, standard output, standard error."""
    capsys.readouterr()

    def run(line):
        try:
            code = main(line.split())
        except SystemExit as exited:
            code = exited.code
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def answer(bfpp):
    """Runs a command with --json, and reads the one object that it prints."""

    def run(line):
        code, out, err = bfpp(f"{line} --json")
        assert (code, err, out.count("\n")) == (0, "", 1)
        return json.loads(out)

    return run


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
    assert (about["model"], about["cluster"], about["data_parallel"]) == (
        "bert-6.6b", "dgx1-v100", 2,
    )  # fmt: skip


def test_a_measured_timeline_is_shown(bfpp, answer):
    shown = answer("show measured.json.gz")
    assert (shown["source"], shown["about"]) == ("measured", {"host": "here"})
    code, out, _ = bfpp("show measured.json.gz")
    assert code == 0
    assert "gpipe: 2 ranks, 3 micro-batches\n" in out
    assert "host" in out
    assert "dispatch" in out.split("What each rank waits for")[1].splitlines()[1]


def test_everything_can_be_made_of_a_saved_timeline(bfpp):
    words = "--html a.html --svg a.svg --perfetto a.json --timeline b.json --graph g.json --text"
    code, out, err = bfpp(f"show measured.json.gz {words}")
    assert (code, err.count("wrote ")) == (0, 5)
    assert "rank 0  compute | " in out
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

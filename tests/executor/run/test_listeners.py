"""Listeners of a run: each line at once, no line lost, and a broken disk that ends nothing."""

from __future__ import annotations

import json
import os
import re
import resource
from pathlib import Path
from typing import Any

import pytest

from bfpp.executor.events import Message, begun, ended, saved, stepped, to_all
from bfpp.executor.run.listeners import AT_FIRST, LastWords, LogLines, MetricsFile
from tests.helpers import ROOT

BEGIN = begun(0, 9, None, ["a note"], ["a warning"])


def step(number: int, loss: float = 0.5) -> Message:
    return stepped(step=number, loss=loss, seconds=0.01, elapsed=0.02, skipped="")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# The metrics file


def test_each_line_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tell = MetricsFile(path, {"schedule": "gpipe"}, 100, peak_seconds=0.005)
    events = (BEGIN, step(0), step(1, float("nan")), saved(2, Path("save-2")), ended("done"))
    for count, event in enumerate(events, 1):
        tell(event)
        assert len(lines_of(path)) == count
    begin, first, second, save, end = lines_of(path)
    assert begin["schedule"] == "gpipe"
    assert (begin["first_step"], begin["steps"], begin["tokens_per_step"]) == (0, 9, 100)
    assert first.keys() == {
        "event", "run", "step", "loss", "seconds", "elapsed", "skipped", "tokens_per_second",
        "mfu", "time",
    }  # fmt: skip
    assert (first["step"], first["loss"], first["tokens_per_second"]) == (0, 0.5, 5000)
    assert first["mfu"] == 0.25  # 5 ms at the peak, in 20 ms
    assert (second["step"], second["loss"]) == (1, None)
    assert (save["step"], save["path"]) == (2, "save-2")
    assert end["how"] == "done"
    assert len({line["run"] for line in lines_of(path)}) == 1
    assert [line["time"] for line in lines_of(path)] == sorted(
        line["time"] for line in lines_of(path)
    )


def test_other_messages_are_nothing_to_it(tmp_path: Path) -> None:
    to_all(MetricsFile(tmp_path / "file", {}, 1), LogLines(1), LastWords())({"what": "a layer"})
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, {}, 1)
    for event in (BEGIN, step(0), step(1), step(2)):
        first(event)
    os.truncate(path, path.stat().st_size - 10)
    again = MetricsFile(path, {}, 1, appends=True)
    for event in (begun(1, 9, Path("save"), [], []), step(1, 0.25)):
        again(event)
    *told, torn, begin, done_again = path.read_text().splitlines()
    with pytest.raises(json.JSONDecodeError):
        json.loads(torn)
    assert [json.loads(line).get("step") for line in told] == [None, 0, 1]
    assert json.loads(begin)["resumed_from"] == "save"
    last = json.loads(done_again)
    assert (last["step"], last["loss"]) == (1, 0.25)
    assert last["run"] != json.loads(told[2])["run"]


def test_a_new_run_begins_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("something else\n")
    tell = MetricsFile(path, {}, 1)
    tell(ended("failed"))
    assert path.read_text() == "something else\n", "not before the run has begun"
    tell(BEGIN)
    assert [line["event"] for line in lines_of(path)] == ["begin"]


def test_a_full_disk_is_said_once_and_nothing_is_lost(tmp_path: Path) -> None:
    path, said = tmp_path / "metrics.jsonl", list[str]()
    tell = MetricsFile(path, {}, 1, say=said.append)
    tell(BEGIN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, hard))
    try:
        for number in range(3):
            tell(step(number))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (line,) = said
    assert line.startswith(f"{path}: File too large: metrics are kept, and tried again")
    tell(step(3))
    assert [line.get("step") for line in lines_of(path)] == [None, 0, 1, 2, 3]


def test_a_folder_that_went_away_is_no_end(tmp_path: Path) -> None:
    said = list[str]()
    tell = MetricsFile(tmp_path / "gone" / "metrics.jsonl", {}, 1, say=said.append)
    tell(BEGIN)
    (tmp_path / "gone").mkdir()
    tell(step(0))
    assert len(said) == 1
    assert [line["event"] for line in lines_of(tmp_path / "gone" / "metrics.jsonl")] == [
        "begin",
        "step",
    ]


@pytest.mark.usefixtures("forked_processes")
def test_the_documentations_listeners_hear_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's example of listeners, with the page's example of a model."""
    page = (ROOT / "docs" / "executor.md").read_text()
    blocks = re.findall(r"```python(.*?)\n(.*?)```", page, flags=re.DOTALL)
    [listeners] = [code for _, code in blocks if "MetricsFile" in code]
    [model] = [code for title, code in blocks if "model.py" in title]
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(model)
    names: dict[str, Any] = {}
    exec(compile(listeners.replace("< 0.01", "> 0"), "executor.md", "exec"), names)
    told, logged = capsys.readouterr()
    assert told.splitlines() == [f"learned by step {step}" for step in range(5)]
    assert logged == ""
    losses = [report.loss for report in names["outcome"].reports]
    lines = lines_of(Path("metrics.jsonl"))
    assert [line["event"] for line in lines] == ["begin", *["step"] * 5, "end"]
    assert [line["loss"] for line in lines[1:-1]] == losses


# Log lines


def test_a_line_for_each_step_at_first_then_one_every_few_seconds() -> None:
    said, now = list[str](), [0.0]
    tell = LogLines(100, say=said.append, clock=lambda: now[0])
    tell(BEGIN)
    for number in range(100):
        tell(step(number))
        now[0] += 1.0
    assert said[:2] == ["a note", "step 0 of 9: loss 0.5000, 20 ms, 5,000 tokens/s"]
    steps = [int(line.split()[1]) for line in said[1:]]
    later = range(AT_FIRST + 4, 100, 5)
    assert steps == [*range(AT_FIRST), *later]


def test_a_line_has_the_mfu_where_the_peak_is_known() -> None:
    said = list[str]()
    LogLines(100, 1, said.append, peak_seconds=0.005)(step(0))
    assert said == ["step 0 of 0: loss 0.5000, 20 ms, 5,000 tokens/s, MFU 25.0%"]


def test_a_line_for_every_so_many_steps() -> None:
    said = list[str]()
    tell = LogLines(1, every=3, say=said.append)
    for number in range(8):
        tell(step(number))
    assert [int(line.split()[1]) for line in said] == [0, 3, 6]


# What is left to say


@pytest.mark.parametrize("how", ["failed", "interrupted"])
def test_a_run_that_fails_says_how_far_it_came(how: str) -> None:
    said = list[str]()
    tell = LastWords(said.append)
    for event in (BEGIN, step(0, 3.0), step(1, 2.0), saved(2, Path("save-2")), step(2, 1.0)):
        tell(event)
    assert said == ["a warning"]
    tell(ended(how, "because"))
    (line,) = said[1:]
    assert line == (
        "done before: steps 0 to 2; loss, first and last: 3.0000, 1.0000; "
        "the last checkpoint is save-2"
    )


def test_a_run_that_ends_well_or_before_a_step_says_no_more() -> None:
    said = list[str]()
    tell = LastWords(said.append)
    tell(ended("failed"))
    tell(step(0))
    tell(ended("done"))
    assert said == []

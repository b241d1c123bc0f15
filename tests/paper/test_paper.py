"""The paper's figures and tables: every file is there, and every formula is counted."""

from __future__ import annotations

import json
import re
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from html import escape
from math import exp
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest

from bfpp.command_line import main
from bfpp.paper import ITEMS, best
from bfpp.paper.figures import figure_1, figure_7, figure_8
from bfpp.paper.figures.figure_7_claims import Gap, of_the_power_limit
from bfpp.paper.item import Claim, PaperTable
from bfpp.paper.studies import next_step, next_step_search
from bfpp.paper.studies.next_step_search import NETWORKS, Fastest, Scenario, lead
from bfpp.paper.tables.method_comparison import COUNTS
from bfpp.paper.tables.methods import METHODS
from bfpp.sim.measurements.validation import compare
from tests.helpers.hand import require_golden

FIGURES = ("figure-2", "figure-3", "figure-4", "figure-5", "figure-6", "figure-9")
TABLES = ("table-models", "table-e1", "table-e2", "table-e3")
COMPARISON = "table-method-comparison"
OTHERS = ("hybrid", "zero-bubble", "measurements")

DIFFERENT = {("1F1B (fully sharded)", "DP network"), ("1F1B (fully sharded)", "DP overlap")}
DIFFERENT |= {("Chimera", column) for column in ("bubble", "DP overlap")}
"""The cells where the count is not the printed formula; each says why."""


@pytest.fixture
def paper(tmp_path, capsys):
    """Makes items into a folder: their record, and what was said besides."""

    def make(*items):
        assert main(["paper", *items, "--out", str(tmp_path), "--json"]) == 0
        out, err = capsys.readouterr()
        assert out.count("\n") == 1
        return json.loads(out)["items"], err

    return make


OF_A_MODEL = re.compile("52 B|6.6 B|Batch size")
"""Charts whose values follow the cost model; those of others follow seconds that are given."""


def recorded(record):
    """The points of charts and the numbers of panels; of a model, only what is on the x axis."""
    for panel in record.get("panels", ()):
        yield f"{panel['caption']}: {panel['step_time']:g} s, {panel['tasks']} tasks"
    for chart, curves in record.get("points", {}).items():
        yield chart
        for name, points in curves.items():
            numbers = [point[:1] if OF_A_MODEL.search(chart) else point for point in points]
            shown = ", ".join(": ".join(f"{each:.6g}" for each in point) for point in numbers)
            yield f"  {name}  {shown}"


@pytest.mark.parametrize("item", [*FIGURES, *TABLES, COMPARISON, *OTHERS])
def test_an_item_writes_its_files(paper, tmp_path, item):
    record, err = paper(item)
    if lines := [*recorded(record[item])]:
        require_golden(f"paper/{item}.txt", "\n".join(lines))
    files = [Path(name) for name in record[item]["files"]]
    index = tmp_path / "index.html"
    assert sorted([*files, index]) == sorted(tmp_path.iterdir())
    assert err.splitlines() == [f"wrote {path}" for path in [*files, index]]
    assert item in index.read_text(encoding="utf-8")
    for path in files:
        assert path.stem == item
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".svg":
            assert ElementTree.fromstring(text).tag.endswith("svg")
        elif path.suffix == ".json":
            assert {"files": record[item]["files"], **json.loads(text)} == record[item]
        else:
            assert text.startswith("table,model," if path.suffix == ".csv" else ("<!", "# "))


def test_the_items_of_the_paper_are_known():
    searched = {"figure-1", "figure-7", "figure-8", "next-step"}
    assert {*FIGURES, *TABLES, COMPARISON, *OTHERS} | searched == ITEMS.keys()


def test_an_item_asked_for_twice_is_made_once(paper):
    record, err = paper("figure-3", "figure-3")
    assert list(record) == ["figure-3"]
    assert err.count("figure-3.svg") == 1


def test_placements(paper):
    (record,) = paper("figure-3")[0].values()
    standard, looping = record["layers_of_devices"].values()
    assert standard == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert looping == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]


def test_breadth_first_is_the_fastest_of_the_four(paper):
    (record,) = paper("figure-4")[0].values()
    times = [panel["step_time"] for panel in record["panels"]]
    assert times == sorted(times, reverse=True)
    assert len(times) == 4
    assert times[-1] < times[-2] < times[-3]


def test_breadth_first_accumulation_hides_what_depth_first_cannot(paper):
    (record,) = paper("figure-9")[0].values()
    depth, depth_sharded, breadth, breadth_sharded = (
        panel["step_time"] for panel in record["panels"]
    )
    assert breadth < depth
    assert breadth_sharded < depth_sharded
    compute = 4 * 4 * 3
    assert min(breadth, breadth_sharded) > compute
    assert depth_sharded > depth


@pytest.fixture
def rows(paper):
    (record,) = paper(COMPARISON)[0].values()
    assert (record["layers"], record["pp"], record["microbatches"]) == (16, 4, 8)
    return {row["method"]: row["columns"] for row in record["rows"]}


def test_every_method_and_every_column_is_counted(rows):
    assert list(rows) == [method.name for method in METHODS]
    for method in METHODS:
        has_pipeline = not method.name.startswith("No pipeline")
        expected = [*COUNTS, *(["flexible N_mb"] if has_pipeline else [])]
        assert list(rows[method.name]) == expected


def test_the_formulas_agree_but_where_a_note_says_why(rows):
    cells = {(name, column): cell for name, row in rows.items() for column, cell in row.items()}
    assert {place for place, cell in cells.items() if not cell["agrees"]} == DIFFERENT
    assert all(cells[place]["note"] for place in DIFFERENT)
    for cell in cells.values():
        assert cell.keys() == {"formula", "printed", "counted", "agrees", "note"}


def test_some_cells_by_hand(rows):
    """16 layers, 4 devices, 8 micro-batches: what section Analysis makes of its formulas."""
    for method, column, value in [
        ("GPipe", "bubble", 1),
        ("Breadth-first", "bubble", 1 / 4),
        ("GPipe", "activation memory", 2),
        ("Chimera", "bubble", 1 / 3),
        ("Chimera", "activation memory", 2),
        ("Chimera", "flexible N_mb", False),
        ("Chimera", "state memory", 8),
        ("Chimera", "DP network", 1),
        ("1F1B", "activation memory", 1),
        ("Depth-first", "activation memory", 1 + 3 / 16),
        ("Depth-first", "PP network", 4),
        ("No pipeline (fully sharded)", "DP network", 24),
        ("Breadth-first (fully sharded)", "DP network", 3 / 4),
        ("1F1B (fully sharded)", "DP network", 6),
        ("Breadth-first", "DP overlap", 3 / 4),
        ("Depth-first", "DP overlap", 3 / 8),
        ("Depth-first", "flexible N_mb", False),
        ("Breadth-first", "flexible N_mb", True),
    ]:
        assert rows[method][column]["counted"] == pytest.approx(value), (method, column)


def test_the_table_is_printed_with_its_notes(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["paper", COMPARISON, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "16 layers, 4 devices, 8 micro-batches" in out
    assert out.count("(!)") == len(DIFFERENT)
    assert "* Depth-first, activation memory: " in out
    markdown = (tmp_path / f"{COMPARISON}.md").read_text(encoding="utf-8")
    assert markdown.count("(!)") == len(DIFFERENT)
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {len(COUNTS) + 3}


def test_markdown_keeps_to_its_cells():
    table = PaperTable("title", ["a", "b"], [["x\ny", "<~ 2"]], ["why"])
    assert table.markdown() == ("# title\n\n| a | b |\n| --- | --- |\n| x y | &lt;~ 2 |\n\n- why\n")


@pytest.fixture
def one_panel(monkeypatch):
    """The searched figures, for the 52 B model at the smallest batch size alone."""
    panel = replace(best.PANELS[0], batches=(8, 9))
    for figure in (figure_1, figure_7, figure_8):
        monkeypatch.setattr(figure, "PANELS", (panel,))


@pytest.mark.usefixtures("one_panel")
def test_the_searched_figures(paper):
    record, _ = paper("figure-1", "figure-7", "figure-8")
    assert next(iter(record["figure-1"]["trainings"])) == "Breadth-first"
    assert [Path(each).suffix for each in record["figure-1"]["files"]] == [".svg", ".md"]
    assert (record["figure-7"]["same_winner"], record["figure-7"]["compared"]) == (1, 1)
    ahead = record["figure-7"]["breadth_first_ahead"]
    assert ahead["Non-looped"] == pytest.approx(0.53, abs=0.15)
    assert ahead["Depth-first"] == pytest.approx(0.43, abs=0.15)
    for item in ("figure-1", "figure-7", "figure-8"):
        assert record[item]["claims"]
        assert all(claim["holds"] or claim["reason"] for claim in record[item]["claims"])
    costs = record["figure-8"]["points"]["(a) 52 B model (B_crit 6780)"]["Breadth-first"]
    days, gpu_days = zip(*costs, strict=True)
    assert list(days) == sorted(days, reverse=True)
    assert list(gpu_days) == sorted(gpu_days)


NOT_FOUND = {
    "figure-5": ["1F1B is the fastest at large batches"],
    "figure-6": ["at 64, the network overhead", "breadth-first avoids most of the overhead"],
}
"""First words of claims that do not come out here: each says why, or that it is not known."""


@pytest.mark.parametrize("item", ["figure-2", "figure-4", "figure-5", "figure-6", "figure-9"])
def test_each_claim_of_the_paper_stands_beside_what_is_drawn(paper, tmp_path, item):
    record, _ = paper(item)
    claims = record[item]["claims"]
    assert len(claims) >= 3
    wrong = [claim for claim in claims if not claim["holds"]]
    for claim, begin in zip(wrong, NOT_FOUND.get(item, []), strict=True):
        assert claim["paper"].startswith(begin)
        assert claim["reason"]
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    for claim in claims:
        assert escape(claim["paper"]) in page
        assert escape(claim["here"]) in page
    assert page.count("<td>not as the paper says</td>") == len(wrong)


def test_what_runs_out_of_memory_is_a_cross(paper, tmp_path):
    """The paper: GPipe runs out of memory at large batches; 1F1B is then the fastest."""
    record, _ = paper("figure-5")
    large, small = record["figure-5"]["out_of_memory"].values()
    assert large == {"Breadth-first (ours)": [96, 128], "GPipe (ours)": [96, 128]}
    assert small == {}
    drawn = (tmp_path / "figure-5.svg").read_text(encoding="utf-8")
    assert "out of memory" in drawn
    assert drawn.count("<circle") == 2 * 4 * 8 - 4
    points = record["figure-5"]["points"]["(a) 52 B model"]
    fitting = {name: dict(curve)[128] for name, curve in points.items() if name not in large}
    assert max(fitting, key=fitting.get) == "1F1B (Megatron-LM)"


def test_the_papers_conclusions_come_out(paper):
    record, _ = paper("figure-6", "figure-4")
    curves = record["figure-6"]["points"]["(b) Batch size 64"]
    breadth, depth = (dict(curve) for curve in curves.values())
    assert max(breadth, key=breadth.get) == 4
    assert depth[8] < 0.8 * depth[1]
    times = [panel["step_time"] for panel in record["figure-4"]["panels"]]
    assert times[0] == times[1] > times[2] > times[3]


class Here:
    """An executor that does the work where it is asked for."""

    def submit(self, work, *given):
        future = Future()
        future.set_result(work(*given))
        return future


@pytest.fixture
def small_step(monkeypatch):
    """The next step for a small model on two nodes, searched in this process."""
    scenario = Scenario("small", "gpt-1.2b", "dgx-a100", 16, 2, (1, 2), 2048, (0.5,))
    monkeypatch.setattr(next_step, "SCENARIOS", (scenario,))
    monkeypatch.setattr(next_step_search, "POLICIES", ("none",))
    monkeypatch.setattr(next_step_search, "executor", lambda _: nullcontext(Here()))


@pytest.mark.usefixtures("small_step")
def test_the_next_step_searches_and_draws(paper, tmp_path):
    record, _ = paper("next-step")
    cases = record["next-step"]["cases"]
    assert [case["samples_per_gpu"] for case in cases] == [0.5] * len(NETWORKS)
    for case in cases:
        ours, other = case["breadth_first"], case["other"]
        assert (ours["schedule"], ours["batch"]) == ("breadth-first", other["batch"])
        assert ours["pp"] > 1
        assert ours["fits"]
        assert other["fits"]
        assert case["lead"] == pytest.approx(other["step_time"] / ours["step_time"] - 1)
        assert case["lead_low"] <= case["lead"] <= case["lead_high"]
    points = record["next-step"]["points"]
    assert [title.split(",")[0] for title in points] == [
        "Figure 5", "Figure 6", *["Figure 7"] * 2, *["Figure 8"] * 2,
    ]  # fmt: skip
    assert all(any(curve for curve in curves.values()) for curves in points.values())
    fast, slow = (points[f"Figure 7, small, {network}"] for network in NETWORKS)
    for name, curve in slow.items():
        assert all(y <= dict(fast[name])[x] + 1e-9 for x, y in curve)
    assert "1 cases" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_what_two_methods_depend_on_alike_makes_no_difference():
    class Step(NamedTuple):
        step_time: float

    one = Fastest(Step(1.0), np.array([0.1, 0.2]))
    other = Fastest(Step(1.1), np.array([0.1, 0.25]))
    assert lead(one, one) == (0, 0, 0)
    assert lead(one, other).share == pytest.approx(0.1)
    assert lead(one, other).high == pytest.approx(1.1 * exp(0.05) - 1)
    assert lead(one, other).is_sure
    assert not lead(one, Fastest(Step(1.1), np.array([0.2, 0.2]))).is_sure


def test_a_claim_that_holds_needs_no_reason():
    given = "the paper", "here"
    assert Claim(*given, holds=True, reason="why not").reason == ""
    assert Claim(*given, holds=False, reason="why not").reason == "why not"


def test_rows_at_the_power_limit_stand_beside_what_was_measured():
    """Those of the 6.6 B model are near it, those of the 52 B model below."""
    gaps = [
        Gap(panel.table, row.schedule, row.batch, row.tflops_per_gpu, predicted, None)
        for panel in best.PANELS
        for row in best.printed(panel.table)
        for predicted in [compare(row).predicted["tflops_per_gpu"]]
    ]
    large, small = of_the_power_limit(best.PANELS, gaps)
    assert (large.holds, small.holds) == (False, True)
    assert "2 rows" in large.paper
    assert "39.2% to 42.4%" in large.paper
    assert "6 rows" in small.paper
    assert "46.0% to 48.4%" in small.paper
    assert large.here == small.here == "all 46.5%"

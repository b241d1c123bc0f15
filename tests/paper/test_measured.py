"""Figures 5 to 7 of studies: every number is the table's, and claims are judged by hand."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bfpp.api.study.table import read_table
from bfpp.paper.measured.figures import FIGURES, measured_figure
from bfpp.paper.measured.panels import charts, rate
from tests.helpers import ROOT

FOLDER = ROOT / "docs" / "studies" / "four-hosts"
TABLE = [*csv.DictReader((FOLDER / "cells.csv").read_text().splitlines())]
COLUMNS = "network,schedule,pp,loops,microbatches,repetitions,measured,measured_low,measured_high"

VARIANTS = ("sequence", "pp_overlap", "backend")
"""Columns of cells that are not of the common grid."""

COMMON = [row for row in TABLE if not any(row.get(name) for name in VARIANTS)]

PAPERS = ("breadth-first", "depth-first", "gpipe", "1f1b")


@pytest.fixture
def drawn(bfpp, tmp_path):
    """Draws a study's figures into a folder: the record, and what was said besides."""

    def draw(study: Path, *items: str) -> tuple[dict[str, dict], str]:
        words = ("paper", *items, "--measured", str(study), "--out", str(tmp_path / "o"), "--json")
        code, out, err = bfpp(*words)
        assert code == 0, err
        return json.loads(out)["items"], err

    return draw


def throughput(row: Mapping[str, str], column: str) -> float:
    """Samples a second of one of four ranks; a micro-batch is a sample."""
    return int(row["microbatches"]) / int(row["pp"]) / float(row[column])


def test_numbers_of_the_figures_are_those_of_the_table(drawn):
    record, _ = drawn(FOLDER)
    assert [*record] == [f"figure-{number}-measured" for number in (5, 6, 7)]
    five, six, seven = (each["points"] for each in record.values())
    for column in ("measured", "predicted"):
        for row in TABLE:
            network, count, label = row["network"], int(row["microbatches"]), schedule(row)
            point = [count, pytest.approx(throughput(row, column), rel=1e-9)]
            case = f"{network}{variant(row)}"
            title = case if label in PAPERS else f"{case}: other schedules"
            if row.get("backend") != "torch-pipelining":  # of one number of micro-batches
                assert point in five[title][f"{label}, {column}"]
            if label in PAPERS:
                looped = {"gpipe": "breadth-first", "1f1b": "depth-first"}.get(label, label)
                curve = six[f"{network}, {count} micro-batches{variant(row)}"]
                assert [2 if label == looped else 1, point[1]] in curve[f"{looped}, {column}"]
    of_papers = sum(schedule(row) in PAPERS for row in TABLE)
    assert sum(len(each) for curves in six.values() for each in curves.values()) == 2 * of_papers
    for network, curves in seven.items():
        for method, names in {"Non-looped": PAPERS[2:], "Breadth-first": PAPERS[:1]}.items():
            for count, value in curves[f"{method}, measured"]:
                rates = [
                    throughput(row, "measured")
                    for row in TABLE
                    if (row["network"], row["microbatches"]) == (network, str(count))
                    and schedule(row) in names
                ]
                assert value == pytest.approx(max(rates), rel=1e-9)


def schedule(row: Mapping[str, str]) -> str:
    """The name of a curve."""
    sequence = row.get("sequence")
    return f"{row['schedule']}, sequence {sequence}" if sequence else row["schedule"]


def variant(row: Mapping[str, str]) -> str:
    """The end of a panel's title."""
    overlaps, backend = row.get("pp_overlap"), row.get("backend")
    words = ", transfers that do not overlap" if overlaps == "False" else ""
    return words + (", PyTorch's runtime" if backend == "torch-pipelining" else "")


def test_the_answers_of_the_documentation_are_the_tables():
    """Leads of breadth-first by network or by micro-batches, and GPipe's over 1F1B."""
    page = " ".join((ROOT / "docs" / "how-to" / "studies.md").read_text().split())
    seconds = {
        (row["network"], row["schedule"], int(row["microbatches"])): float(row["measured"])
        for row in COMMON
    }
    networks = list(dict.fromkeys(row["network"] for row in TABLE))

    def lead(network: str, count: int, *others: str, of: str = "breadth-first") -> float:
        best = min(seconds[network, other, count] for other in others)
        return 100 * (best / seconds[network, of, count] - 1)

    def said(leads: list[float], form: str = "{:.0f} %") -> str:
        *first, last = (form.format(each) for each in leads)
        return f"{', '.join(first)} and {last}"

    eight, sixteen, four = (
        [lead(each, count, "depth-first") for each in networks] for count in (8, 16, 4)
    )
    assert f"with 8 micro-batches it is ahead by {said(eight)}" in page
    assert f"with 16 by {said(sixteen)}" in page
    assert f"it gains nothing or little ({said(four, '{:+.0f} %')})" in page
    fast, middle, slow = ([lead(each, count, "gpipe", "1f1b") for count in (4, 8, 16)]
                          for each in networks)  # fmt: skip
    assert f"of the better of them by {said(fast)} with 4, 8 and 16" in page
    assert f"by {said(middle)} at 100 Mbit/s" in page
    assert f"behind GPipe by {said([-each for each in slow])}" in page
    gpipe = [lead(networks[-1], count, "1f1b", of="gpipe") for count in (4, 8, 16)]
    assert f"GPipe is {min(gpipe):.0f} % to {max(gpipe):.0f} % faster" in page


def test_one_command_draws_the_figures_of_the_documentation_again(drawn, tmp_path):
    drawn(FOLDER)
    names = [path.name for path in sorted((tmp_path / "o").iterdir())]
    assert names == [*(f"figure-{number}-measured.svg" for number in (5, 6, 7)), "index.html"]
    for name in names:
        assert (tmp_path / "o" / name).read_bytes() == (FOLDER / "paper" / name).read_bytes(), name


def test_intervals_are_drawn_where_the_table_has_them():
    """Ends of the bars of the first panel, in the chart's numbers."""
    rows = [row for row in read_table(FOLDER) if row.network == "400 Mbit/s"]
    made = FIGURES["figure-5"].make(rows)
    chart, *_ = charts(made.panels, "x")
    ends = {
        (each.name, x): bar
        for each in chart.series if not each.joined
        for x, bar in zip(each.x, each.intervals, strict=True)
    }  # fmt: skip
    known = {
        (row["schedule"], int(row["microbatches"])): row
        for row in COMMON if row["network"] == "400 Mbit/s" and row["schedule"] in PAPERS
    }  # fmt: skip
    assert ends.keys() == known.keys()
    for cell, row in known.items():
        bar = throughput(row, "measured_high"), throughput(row, "measured_low")
        assert ends[cell] == pytest.approx(bar)
        assert bar[0] < throughput(row, "measured") < bar[1]


def study(folder: Path, seconds: Mapping[tuple[str, int, int], float], **more: str) -> Path:
    """A table of cells by schedule, loops and micro-batches, predicted 10 % too slow."""
    names = "".join(f",{name}" for name in more)
    lines = [f"{COLUMNS},predicted,error{names}"]
    for (name, loops, count), each in seconds.items():
        own = "".join(f",{value}" for value in more.values())
        times = f"{each},{0.9 * each},{1.2 * each},{1.1 * each}"
        lines.append(f"a switch,{name},2,{loops},{count},3,{times},0.1{own}")
    (folder / "cells.csv").write_text("\n".join(lines) + "\n")
    return folder


BASE = {
    ("breadth-first", 2, 2): 1.0, ("depth-first", 2, 2): 1.2, ("gpipe", 2, 2): 1.3,
    ("1f1b", 2, 2): 1.31, ("breadth-first", 2, 8): 4.0, ("depth-first", 2, 8): 4.2,
    ("gpipe", 2, 8): 4.15, ("1f1b", 2, 8): 3.98,
}  # fmt: skip

# fmt: off
VERDICTS = [
    # of figure 5: few, slower, many, alike; of 6: bubble, small only; of 7: leads, ahead
    ({}, "yes no yes yes yes yes no yes"),
    ({("breadth-first", 2, 2): 1.1}, "no no yes yes yes yes no yes"),  # by 9 %
    ({("depth-first", 2, 2): 1.32, ("depth-first", 2, 8): 4.16}, "yes yes yes yes no no no yes"),
    ({("1f1b", 2, 8): 4.01}, "yes no no yes yes yes no yes"),
    ({("1f1b", 2, 2): 1.37}, "yes no yes no yes yes no yes"),  # 5.4 % from GPipe
    ({("1f1b", 2, 8): 4.3}, "yes no no yes yes no no yes"),  # depth-first gains at both
    ({("gpipe", 2, 2): 1.53, ("1f1b", 2, 2): 1.53, ("depth-first", 2, 2): 1.43},
     "yes no yes yes yes yes yes yes"),
    ({("gpipe", 2, 2): 0.99}, "no no yes no no yes no no"),
]
# fmt: on


@pytest.mark.parametrize(("changes", "holds"), VERDICTS)
def test_claims_are_judged_by_what_was_measured(changes, holds, tmp_path):
    rows = read_table(study(tmp_path, BASE | changes))
    claims = [each for figure in FIGURES.values() for each in figure.make(rows).claims]
    assert ["yes" if each.holds else "no" for each in claims] == holds.split()
    assert all(each.paper.startswith("a switch: ") for each in claims)
    assert all(each.reason for each in claims if not each.holds)


@pytest.mark.parametrize(
    ("few", "many", "holds"), [(1.0, 0.75, True), (0.0, 0.75, False), (0.75, 0.25, False)]
)
def test_the_hybrid_is_judged_by_the_share_of_the_lead_that_it_has(few, many, holds, tmp_path):
    """Of breadth-first's lead over depth-first, in throughput, by micro-batches."""
    folder = study(tmp_path, BASE)
    first, *lines = (folder / "cells.csv").read_text().splitlines()
    lines = [f"{first},sequence", *(f"{line}," for line in lines)]
    for count, share in ((2, few), (8, many)):
        leader, own = (1 / BASE[name, 2, count] for name in ("breadth-first", "depth-first"))
        each = 1 / (own + share * (leader - own))
        times = f"{each},{0.9 * each},{1.2 * each},{each},0"
        lines.append(f"a switch,depth-first,2,2,{count},3,{times},{count}")
    (folder / "cells.csv").write_text("\n".join(lines) + "\n")
    made = FIGURES["figure-5"].make(read_table(folder))
    (claim,) = (each for each in made.claims if "longer sequences" in each.paper)
    assert claim.holds == holds
    assert f"{few:.0%} with 2 and {many:.0%} with 8 micro-batches" in claim.here
    curves = [name for panel in made.panels for name in panel.curves]
    assert {"depth-first, sequence 2", "depth-first, sequence 8"} <= {*curves}


def test_reasons_are_those_of_the_cells(tmp_path):
    """Without overlap, the software is no reason."""
    rows = read_table(study(tmp_path, BASE, pp_overlap="False"))
    claims = [each for figure in FIGURES.values() for each in figure.make(rows).claims]
    assert not any("overlap" in each.reason for each in claims)


def test_what_a_study_does_not_hold_is_one_line(drawn, bfpp, tmp_path):
    seconds = {cell: each for cell, each in BASE.items() if cell[2] == 2}
    record, err = drawn(study(tmp_path, seconds))
    assert [*record] == ["figure-6-measured"]
    assert err.startswith(
        "bfpp paper: not drawn: figure-5 needs several numbers of micro-batches of the paper's "
        "schedules; figure-7 needs several batch sizes of the paper's schedules\n"
    )
    code, _, err = bfpp("paper", "figure-7", "--measured", str(tmp_path), "--out", "o")
    assert (code, err.count("\n")) == (2, 1)
    assert "figure-7 needs several batch sizes" in err


def test_values_that_differ_make_panels_and_not_points(tmp_path):
    """Sharded cells are other cells; of figure 7, the fastest of both is the method's."""
    plain = study(tmp_path, BASE).joinpath("cells.csv").read_text().splitlines()
    lines = [f"{plain[0]},sharding", *(f"{line},none" for line in plain[1:])]
    cell = "a switch,breadth-first,2,2,2,3,0.5,0.4,0.6,0.5,0"
    (tmp_path / "cells.csv").write_text("\n".join([*lines, f"{cell},full", ""]))
    rows = read_table(tmp_path / "cells.csv")
    five, six, seven = (figure.make(rows).panels for figure in FIGURES.values())
    assert [each.title for each in five] == ["a switch, sharding none"]
    assert len(six) == 2
    assert seven[0].measured["Breadth-first"] == {2: 2 / 2 / 0.5, 8: 8 / 2 / 4.0}
    assert rate(rows[-1], rows[-1].predicted) == 2.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("network,schedule\n", "cells.csv: is no table of a study: 'repetitions' is missing"),
        ("{columns}\n", "cells.csv: has no rows"),
        ("{columns}\na,gpipe,2,1,2,3,-1,0,2,1,0\n", "line 2: measured must be a positive number"),
        ("{columns}\na,gpipe,2,1,2,3,1,2,3,1,0\n", "line 2: measured must be between"),
        ("{columns}\na,gpipe,2\n", "line 2: has other cells than there are columns"),
        ("{columns}\na,gpip,2,1,2,3,1,1,1,1,0\n", "line 2: schedule: 'gpip' is not"),
        ("{columns}\na,x.py:F,2,1,2,3,1,1,1,1,0\n", "names Python code to be run, x.py:F: --trust"),
    ],
)
def test_tables_that_cannot_be_read_are_one_line(text, reason, bfpp, tmp_path):
    (tmp_path / "cells.csv").write_text(text.format(columns=f"{COLUMNS},predicted,error"))
    code, _, err = bfpp("paper", "--measured", str(tmp_path), "--out", str(tmp_path / "o"))
    assert (code, err.count("\n")) == (2, 1)
    assert reason in err


def test_figures_have_the_width_of_the_print(bfpp, tmp_path):
    words = ("paper", "figure-7", "--measured", str(FOLDER), "--width", "84mm")
    assert bfpp(*words, "--out", str(tmp_path))[0] == 0
    svg = ElementTree.parse(tmp_path / "figure-7-measured.svg").getroot()
    assert float(svg.attrib["width"].removesuffix("pt")) == pytest.approx(84 / 25.4 * 72, abs=0.1)


def test_a_study_of_other_schedules_has_no_figure_of_methods(tmp_path):
    rows = read_table(study(tmp_path, {("zb-h1", 2, 2): 1.0, ("zb-h1", 2, 4): 2.0}))
    assert measured_figure("figure-5", rows)
    assert measured_figure("figure-6", rows) is None
    assert measured_figure("figure-7", rows) is None

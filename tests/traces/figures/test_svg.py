"""SVG figures: well-formed, to one scale, honest about colours, and small however long the run."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given

import bfpp
from bfpp.schedules import Communication, Layout, Operation, Sharding, TaskGraph, build_graph
from bfpp.schedules.columns import NONE
from bfpp.schedules.operations.streams import STREAMS
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.simpy_engine import simulate
from bfpp.traces.figures.appearance import IDLE, drawn_rows, fill
from bfpp.traces.figures.bars import FINEST, Bar, bars
from bfpp.traces.figures.panel import Panel
from bfpp.traces.figures.svg.elements import text_width
from bfpp.traces.figures.svg.placement import svg_placements
from bfpp.traces.figures.svg.schedule import svg
from bfpp.traces.figures.time_axis import time_axis
from bfpp.traces.timeline.timeline import Timeline
from bfpp.traces.timeline.units import in_words
from tests.helpers.strategies import graphs

NAMESPACE = "{http://www.w3.org/2000/svg}"
FIGURE_4 = {
    "gpipe": Layout(4, 8, units_per_stage=4),
    "1f1b": Layout(4, 8, units_per_stage=4),
    "depth-first": Layout(4, 8, 4),
    "breadth-first": Layout(4, 8, 4),
}


def timeline(schedule: str, layout: Layout, sharding: str = "none", **costs: float) -> Timeline:
    graph = build_graph(schedule, layout, Communication(Sharding(sharding)))
    return simulate(graph, AbstractCosts(**costs).costs(graph))


def figure_4(**costs: float) -> list[Panel]:
    return [
        Panel(f"({letter}) {name}", timeline(name, layout, **costs))
        for letter, (name, layout) in zip("abcd", FIGURE_4.items(), strict=True)
    ]


def parsed(drawn: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawn)


def texts(drawn: str) -> list[str]:
    return [element.text or "" for element in parsed(drawn).iter(f"{NAMESPACE}text")]


Box = tuple[float, float, float, float]


def boxes(drawn: str) -> dict[str, list[Box]]:
    """The filled boxes by colour, as (left, top, right, bottom)."""
    found: dict[str, list[Box]] = {}
    number = r"(-?[\d.]+)"
    piece = re.compile(f"M{number} {number}H{number}V{number}H{number}z")
    for path in parsed(drawn).iter(f"{NAMESPACE}path"):
        for left, top, right, bottom, back in piece.findall(path.get("d", "")):
            assert back == left
            box = float(left), float(top), float(right), float(bottom)
            found.setdefault(path.get("fill", ""), []).append(box)
    return found


def all_bars(one: Timeline, scale: float) -> list[list[Bar]]:
    return [bars(one, row, scale) for row in drawn_rows(one)]


def test_figure_4_is_to_one_scale() -> None:
    panels = figure_4(reduce=3)
    drawn = boxes(svg(panels))
    tracks = drawn[IDLE]
    assert len(tracks) == 4 * 4 * 2
    widths = [right - left for left, _, right, _ in tracks]
    steps = [panel.timeline.step_time for panel in panels]
    shares = np.array(widths) / np.repeat(steps, 8)
    assert np.ptp(shares) < 1e-3
    assert {round(bottom - top, 2) for _, top, _, bottom in tracks} == {14.0, 7.0}


def test_bars_have_the_length_of_their_tasks() -> None:
    (panel,) = panels = figure_4()[3:]
    drawn = boxes(svg(panels))
    left, _, right, _ = drawn[IDLE][0]
    scale = (right - left) / panel.timeline.step_time
    for operation, seconds in ((Operation.FORWARD, 1), (Operation.BACKWARD, 2)):
        colour = fill(operation, 1, 8)
        lengths = [box[2] - box[0] for box in drawn[colour]]
        assert len(lengths) == 16
        assert lengths == pytest.approx([seconds * scale] * 16, abs=0.011)


def test_labels_are_microbatches_and_stages() -> None:
    labels = texts(svg(figure_4(reduce=3)[3:]))
    for stage in range(8, 16):
        assert str(stage) in labels
    assert labels.count("5") == 4 * 4 * 2 + 1


def test_layers_of_one_pass_are_one_bar_with_seams() -> None:
    one = timeline("gpipe", FIGURE_4["gpipe"])
    for row in all_bars(one, scale=5.0):
        assert [bar.label for bar in row] == 2 * [str(number) for number in range(8)]
        assert {len(bar.seams) for bar in row} == {3}
        assert all(bar.left < seam < bar.right for bar in row for seam in bar.seams)


def test_rows_without_time_are_left_out() -> None:
    free = timeline("breadth-first", FIGURE_4["breadth-first"])
    assert len(boxes(svg([Panel("free", free, streams=STREAMS)]))[IDLE]) == 4
    costly = timeline("breadth-first", FIGURE_4["breadth-first"], transfer=0.25, reduce=1)
    drawn = svg([Panel("costly", costly, streams=STREAMS)])
    assert len(boxes(drawn)[IDLE]) == len(costly.graph.lanes)
    assert "send gradients to 3" in texts(drawn)
    assert "transfer gradients" in texts(drawn)


def test_legend_explains_what_is_drawn_and_nothing_else() -> None:
    labels = texts(svg(figure_4()))
    assert {"forward", "backward"} <= set(labels)
    assert not {"all-gather", "all-reduce", "optimizer", "transfer activations"} & set(labels)
    labels = texts(svg(figure_4(reduce=1, optimizer=1)))
    assert {"all-reduce", "optimizer"} <= set(labels)


@pytest.mark.parametrize(
    ("microbatches", "costs", "note"),
    [
        (8, {"reduce": 3}, "numbers: micro-batch; unit for all-gathers and reductions"),
        (8, {}, "numbers: micro-batch"),
        (8, {"optimizer": 1}, "numbers: micro-batch"),
        (8, {"reduce": 0.1}, "numbers: micro-batch"),
        (512, {"reduce": 300}, "numbers: unit for all-gathers and reductions"),
        (512, {"reduce": 1}, None),
    ],
)
def test_the_legend_says_what_the_numbers_that_are_drawn_count(
    microbatches: int, costs: dict[str, float], note: str | None
) -> None:
    one = timeline("breadth-first", Layout(2, microbatches, 2), **costs)
    labels = texts(svg([Panel("any", one)]))
    assert [each for each in labels if each.startswith("numbers")] == ([note] if note else [])


@pytest.mark.parametrize("sharding", ["partial", "full"])
def test_a_reduction_is_called_by_what_is_done(sharding: str) -> None:
    sharded = timeline("breadth-first", Layout(2, 4, 2), sharding, gather=1, reduce=1)
    labels = texts(svg([Panel("sharded", sharded)]))
    assert {"all-gather", "reduce-scatter"} <= set(labels)
    assert "all-reduce" not in labels


HOSTILE = "</text><script>alert(1)</script>&amp;\"'\x00\x1b[31m\x0b\ud800\ufffe]]>"


@pytest.mark.parametrize("draw", ["panel", "placement"])
def test_foreign_titles_are_escaped(draw: str, tmp_path: Path) -> None:
    layout = FIGURE_4["gpipe"]
    if draw == "panel":
        panels = [Panel(HOSTILE, timeline("gpipe", layout))]
        drawn = svg(panels)
        bfpp.write_svg(panels, tmp_path / "figure.svg")
        assert (tmp_path / "figure.svg").read_text(encoding="utf-8") == drawn
    else:
        drawn = svg_placements([(HOSTILE, layout)])
    assert not list(parsed(drawn).iter(f"{NAMESPACE}script"))
    title = parsed(drawn).findtext(f"{NAMESPACE}title")
    assert title is not None
    assert title.startswith("</text><script>alert(1)</script>&amp;\"'�")
    assert title.endswith("�]]>")


def test_long_titles_stay_inside() -> None:
    drawn = svg([Panel("word " * 100, timeline("gpipe", FIGURE_4["gpipe"]))])
    title = [content for content in texts(drawn) if content.startswith("word")]
    assert len(title) == 3
    assert title[-1].endswith("…")
    assert text_width(title[0], 10) < 720 - 80  # the note is beside it
    assert all(720 - 80 < text_width(line, 10) < 720 - 8 for line in title[1:])


def test_a_title_that_a_column_has_no_room_for_is_broken_not_cut() -> None:
    title = "breadth-first: 4 ranks, 8 micro-batches, ZeRO-1, 2 loops"
    wide, narrow = (
        svg([Panel(title, timeline("gpipe", FIGURE_4["gpipe"]))], points) for points in (None, 238)
    )
    assert title in texts(wide)
    assert not [content for content in texts(narrow) if content.endswith("…")]
    lines = [content for content in texts(narrow) if content in title and " " in content]
    assert " ".join(lines) == title


def test_equal_neighbours_leave_no_gap() -> None:
    drawn = boxes(svg(figure_4()[3:]))
    by_row: dict[float, list[Box]] = {}
    for colour, found in drawn.items():
        for box in found:
            if colour != IDLE and box[3] - box[1] == 14:
                by_row.setdefault(box[1], []).append(box)
    assert len(by_row) == 4
    gaps = [
        following[0] - box[2] for row in by_row.values() for box, following in pairwise(sorted(row))
    ]
    assert sum(gap == 0 for gap in gaps) >= len(gaps) - 4
    assert all(gap >= 0 for gap in gaps)


def test_a_long_run_stays_small_and_covers_the_same_time() -> None:
    one = timeline("1f1b", Layout(4, 1600, units_per_stage=4), reduce=3)
    assert len(one.graph) > 50_000
    drawn = svg([Panel("long", one)])
    assert len(drawn) < 500_000
    assert sum(map(len, boxes(drawn).values())) < 4 * 2 * 800
    scale = 600 / one.step_time
    row = drawn_rows(one)[0]
    of_row = bars(one, row, scale)
    covered = sum(bar.right - bar.left for bar in of_row) / scale
    assert covered >= one.duration[row.tasks].sum() - 1e-6
    assert all(a.right <= b.left + 1e-9 for a, b in pairwise(of_row))


def test_thin_bars_blend_by_time() -> None:
    one = timeline("1f1b", Layout(1, 400), forward=1, backward=3)
    (row,) = all_bars(one, scale=FINEST / 40)
    forward, backward = (
        np.array(list(bytes.fromhex(fill(operation, 200, 400)[1:])))
        for operation in (Operation.FORWARD, Operation.BACKWARD)
    )
    middle = np.array(list(bytes.fromhex(row[len(row) // 2].colour[1:])))
    assert np.abs(middle - (forward + 3 * backward) / 4).max() < 12


@given(graph=graphs())
def test_every_graph_can_be_drawn(graph: TaskGraph) -> None:
    costs = AbstractCosts(1.1e-3, 2.3e-3, transfer=1e-4, gather=5e-4, reduce=7e-4)
    one = simulate(graph, costs.costs(graph))
    root = parsed(svg([Panel("any", one, streams=STREAMS)]))
    assert root.tag == f"{NAMESPACE}svg"


def test_no_time_and_no_panels_are_still_figures() -> None:
    free = timeline("gpipe", FIGURE_4["gpipe"], forward=0, backward=0)
    assert "(a) nothing" in texts(svg([Panel("(a) nothing", free)]))
    assert parsed(svg([])).tag == f"{NAMESPACE}svg"
    assert parsed(svg_placements([])).tag == f"{NAMESPACE}svg"


def test_placements_number_every_layer_on_its_rank() -> None:
    placements = [
        ("(a) Standard", Layout(4, 8, units_per_stage=4)),
        ("(b) Looping", Layout(4, 8, 4)),
    ]
    for title, layout in placements:
        drawn = svg_placements([(title, layout)])
        labels = texts(drawn)
        assert labels[0] == title
        assert all(labels.count(str(layer)) == 2 for layer in range(16))
        found = boxes(drawn)
        tops = sorted({box[1] for box in found[IDLE]})
        for rank in range(4):
            inside = found[fill(Operation.FORWARD, rank, 4)]
            assert {round(box[1] - tops[rank], 2) for box in inside} == {2.5}
            columns = sorted(round((box[0] - 43.5) / 20) for box in inside)
            assert columns == layout.units_of(rank)
    both = texts(svg_placements(placements))
    assert {"(a) Standard", "(b) Looping"} <= set(both)
    assert both.count("15") == 4


@pytest.mark.parametrize(
    ("seconds", "unit", "last"),
    [(33, "s", 30), (138, "s", 120), (0.684, "ms", 600), (2.5e-6, "µs", 2.5), (1e-9, "ns", 1)],
)
def test_time_axis_is_round(seconds: float, unit: str, last: float) -> None:
    axis = time_axis(seconds)
    assert axis.unit == unit
    assert axis.ticks[-1] == pytest.approx(last)
    assert 5 <= len(axis.ticks) <= 11
    assert axis.tick_seconds[-1] <= seconds * (1 + 1e-9)


def test_durations_are_written_in_a_fitting_unit() -> None:
    assert [in_words(seconds) for seconds in (0, 138, 10521.3, 0.00125, 3e-12)] == [
        "0 s",
        "138 s",
        "10521 s",
        "1.25 ms",
        "0.003 ns",
    ]


def test_gathers_do_not_join_although_they_touch() -> None:
    one = timeline("breadth-first", Layout(1, 2, 4), "full", gather=5)
    (data,) = (row for row in drawn_rows(one) if row.title == "data")
    assert (one.graph.microbatch[data.tasks] == NONE).all()
    assert len(bars(one, data, 10.0)) == len(data.tasks)


@pytest.mark.parametrize("points", [200.0, 238.0, 510.0])
def test_a_figure_of_a_chosen_width_keeps_its_letters_and_stays_inside(points):
    sharded = Panel("sharded", timeline("breadth-first", Layout(2, 4, 2), "full", gather=0.5))
    drawn = svg([*figure_4(transfer=0.25), sharded], points)
    figure = parsed(drawn)
    assert figure.get("width") == f"{points:g}pt"
    assert float(figure.get("viewBox", "").split()[2]) == points
    for group in figure.iter():
        if size := group.get("font-size"):
            assert float(size) >= 5
    for each in figure.iter(f"{NAMESPACE}text"):
        if each.get("font-size"):
            wide = text_width(each.text or "", float(each.get("font-size")))
            at = float(each.get("x"))
            left = at - wide if each.get("text-anchor") == "end" else at
            right = at if each.get("text-anchor") == "end" else at + wide
            assert left >= -1
            assert right <= points + 1

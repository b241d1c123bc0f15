"""Small figures, to the letter: what their axes say, and where every mark is, by pencil and paper.

Each docstring says how coordinates follow from numbers, so that a mark of the golden file can be
looked up; the test of a step's figure is among those of files (`traces/formats/test_written.py`).
"""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from bfpp.schedules import Layout, build_graph
from bfpp.sim.costs.abstract import AbstractCosts
from bfpp.sim.engines.simpy_engine import simulate
from bfpp.traces.explain.looks import LOOKS
from bfpp.traces.figures.appearance import fill, ink, luminance
from bfpp.traces.figures.panel import Panel
from bfpp.traces.figures.svg.bar_chart import Bars, svg_bars
from bfpp.traces.figures.svg.heat_map import svg_heat_map
from bfpp.traces.figures.svg.line_chart import Chart, Series, svg_charts
from bfpp.traces.figures.svg.memory import svg_memory
from bfpp.traces.figures.svg.placement import svg_placements
from bfpp.traces.figures.svg.scatter import Point, scatter
from bfpp.traces.figures.svg.schedule import svg
from bfpp.traces.figures.time_axis import time_axis
from bfpp.traces.timeline.memory_curves import MemoryCurve
from bfpp.traces.timeline.units import in_words
from tests.helpers.hand import require_golden

CURVES = Chart(
    "(a) Speed", "GPUs", "samples/s",
    [
        Series("fast", (2, 4, 8), (1.0, math.nan, 4.0)),
        Series("slow", (2, 8), (0.5, 2.0), joined=False, crossed=(8,)),
    ],
    logarithmic_x=True, crosses="out of memory",
)  # fmt: skip
LINES = Chart("(b) Loss", "step", "loss", [Series("fast", (0, 10), (3, 2), dotted=False)])
POWERS = Chart(
    "(c) Cost", "days", "dollars",
    [Series("slow", tuple(range(1, 11)), (1, 10, 100, 1000, *(1000,) * 6))],
    logarithmic_x=True, logarithmic_y=True,
)  # fmt: skip


@pytest.mark.parametrize(("layers", "seams"), [(74, 73), (75, 0)])
def test_seams(layers: int, seams: int) -> None:
    """A pass of so many layers is a third of 669.6 points: 223.2 = 3 x 74.4, and seams of layers
    are drawn where they are 3 apart at least. The backward pass, twice as wide, has all of them.
    """
    graph = build_graph("gpipe", Layout(1, 1, units_per_stage=layers))
    drawn = svg([Panel("", simulate(graph, AbstractCosts().costs(graph)))])
    (inside,) = re.findall(r'stroke-opacity="0.45" d="([^"]*)"', drawn)
    assert inside.count("M") == seams + layers - 1


def test_curves() -> None:
    """A chart is 250 wide: x from 8 + 34 to 8 + 240, y from 162 to 38.

    The first has no number at 4 GPUs, and y from 0 to 4.2: 4 is at 162 - 124 x 4 / 4.2 = 43.9. The
    second begins at 258, ends at 10.5 steps: 10 are 34 + 206 / 1.05 = 230.19 from there.
    """
    require_golden("drawn/charts.svg", svg_charts([CURVES, LINES, POWERS], columns=2))


def test_bars() -> None:
    """Names end at 8 + their width; a bar has 170 less its number's width and 5, for the most."""
    days = Bars("days", {"gpipe": 10.0, "1f1b": 40.0})
    require_golden("drawn/bars.svg", svg_bars([days, Bars("GB", {"1f1b": 2.0})], "Costs"))


def test_points() -> None:
    """420 to a side from (64, 468), for 0 to 12 in steps of 2: 10 measured are at 64 + 350 = 414,
    and 12 predicted at 48; 5 and 4 at (239, 328).
    """
    points = [Point("gpipe", 10, 12), Point("1f1b", 5, 4)]
    require_golden("drawn/scatter.svg", scatter(points, "Predictions", "ms"))


def test_memory() -> None:
    """Weights of 1 GiB all the time, 2 GiB of activations from 1 to 3 s of a step of 4 s."""
    curve = MemoryCurve(
        0,
        np.array([0.0, 1.0, 3.0]),
        {
            "training state": np.array([1.0, 1.0, 1.0]),
            "saved activations": np.array([0.0, 2.0, 0.0]),
        },
        np.array([0, 1, 2]),
    )
    require_golden("drawn/memory.svg", svg_memory([curve], "Memory", 4.0, 4.0))


def test_placements() -> None:
    """Rank by rank: the first half of eight layers on rank 0, or every other one."""
    layouts = [("(a) Standard", Layout(2, 1, units_per_stage=4)), ("(b) Looping", Layout(2, 1, 4))]
    require_golden("drawn/placements.svg", svg_placements(layouts))


@pytest.mark.parametrize(
    ("colour", "expected"),
    # By the definition of relative luminance in WCAG 2.2, on a pocket calculator.
    [
        ("#ffffff", 1.0), ("#000000", 0.0), ("#ff0000", 0.2126), ("#808080", 0.21586),
        ("#0a0a0a", 0.0030353),
    ],
)  # fmt: skip
def test_luminance(colour: str, expected: float) -> None:
    assert luminance(colour) == pytest.approx(expected, rel=1e-4)
    assert ink(colour) == ("#ffffff" if expected < 0.179 else "#000000")


def test_colours() -> None:
    """Operations, the first and the last of their shades."""
    lines = [
        f"{operation.title}: {fill(operation)} to {fill(operation, 3, 4)}" for operation in LOOKS
    ]
    require_golden("drawn/colours.txt", "\n".join(lines))


@pytest.mark.parametrize(
    ("seconds", "unit", "labels"),
    [
        (10.0, "s", "0 1 2 3 4 5 6 7 8 9 10"),
        (10.375, "s", "0 2 4 6 8 10"),
        (0.25, "ms", "0 50 100 150 200 250"),
        (1e-3, "ms", "0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 1"),
        (4.2e-5, "µs", "0 5 10 15 20 25 30 35 40"),
        (3e-9, "ns", "0 0.5 1 1.5 2 2.5 3"),
        (0.0, "s", "0"),
    ],
)
def test_ticks(seconds: float, unit: str, labels: str) -> None:
    axis = time_axis(seconds)
    assert (axis.unit, " ".join(axis.tick_labels)) == (unit, labels)
    assert axis.tick_seconds[-1] <= seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 s"), (-0.5, "-500 ms"), (1.0, "1 s"), (0.99996, "1000 ms"), (12.3456, "12.35 s"),
        (12345.6, "12346 s"), (1.25e-3, "1.25 ms"), (9.87654e-6, "9.877 µs"), (2e-10, "0.2 ns"),
    ],
)  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_a_map_of_colours() -> None:
    """Cells of 34 x 17 from (34.5, 33) on: names beside take 22.5, an edge and a space 6 each.

    1 is the lightest, (255, 244, 229), 2 the darkest, (158, 32, 32), and 1.5 half of both.
    """
    values = np.array([[1.0, 1.5], [math.nan, 2.0]])
    drawn = svg_heat_map(values, "ab", "cd", ("replica", "rank"), 1.0)
    cells = re.findall(r'fill="(#\w+)" d="M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)H', drawn)[:4]
    assert cells == [
        ("#fff4e5", "34.5", "33", "68.5", "50"), ("#ce8a82", "68.5", "33", "102.5", "50"),
        ("#eef0f3", "34.5", "50", "68.5", "67"), ("#9e2020", "68.5", "50", "102.5", "67"),
    ]  # fmt: skip
    texts = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]+)<', drawn)
    assert texts == [
        ("34.5", "13.5", "rank"), ("28.5", "30", "replica"),
        ("28.5", "44.2", "a"), ("28.5", "61.2", "b"), ("51.5", "30", "c"), ("85.5", "30", "d"),
        ("51.5", "44.2", "1.00"), ("85.5", "44.2", "1.50"), ("85.5", "61.2", "2.00"),
        ("34.5", "80.5", "1.00"), ("141.03", "80.5", "2.00"),
    ]  # fmt: skip
    inks = re.findall(r'fill="(#0{6}|#f{6})"><text', drawn)
    assert inks == ["#000000", "#ffffff"]


def test_a_wide_map_names_columns_as_far_as_there_is_room() -> None:
    """(720 - 34.5 - 6) / 100 is 6.795 a column: a name takes 22, or four of them."""
    columns = [str(number) for number in range(100)]
    drawn = svg_heat_map(np.ones((1, 100)), ["a"], columns, ("replica", "rank"), 1.0)
    named = re.findall(r'<text x="([\d.]+)" y="30">(\d+)<', drawn)
    assert [name for _, name in named] == columns[::4]
    assert float(named[1][0]) - float(named[0][0]) == pytest.approx(4 * 6.795, abs=0.02)
    assert "1.00</text><text" not in drawn

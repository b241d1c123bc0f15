"""Curves in axes, as SVG for print: several charts side by side, one legend."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from bfpp.traces.figures.appearance import DARK_INK, QUIET_INK
from bfpp.traces.figures.svg.elements import (
    LEADING,
    MIDDLE,
    SMALL,
    Sample,
    document,
    heading,
    legend,
    moved,
    number,
    stroked,
    text,
    wrapped,
)
from bfpp.traces.figures.time_axis import round_step

COLOURS = (
    "#1f5fa8", "#d9700f", "#2f8f5b", "#8a4fb0", "#b8324f", "#5b6770", "#3aa6b9", "#a08a00",
    "#161616", "#e48fc0",
)  # fmt: skip
"""Series colours, in the order of their first mention; distinct to colour-blind readers."""

# Lengths are in user units: pixels, or points where a width of the print is given.
WIDTH, HEIGHT, EDGE, LEFT, BELOW, ABOVE = 250.0, 190.0, 8.0, 34.0, 28.0, 30.0
LEAST_WIDTH, RIGHT = 150.0, 10.0
TITLE, LINE, LEGEND = 9.5, 1.4, 18.0
GRID, DOT, BAR = "#dfe3e8", 2.1, 0.9
MOST_TICKS = 6
ROOM = 0.05
"""The share of an axis that is left free above its largest value."""


@dataclass(frozen=True)
class Series:
    """Points shown as dots, joined by a line, or both; a gap where y is not finite.

    Those at `crossed` x are crosses instead of dots: what that means is the chart's `crosses`.
    `intervals` are the low and high end of each y, if it has one.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    joined: bool = True
    dotted: bool = True
    crossed: Collection[float] = ()
    intervals: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Chart:
    """Series in one pair of axes; a logarithmic axis takes positive numbers only.

    `lines`, `dots` and `crosses` say in the legend what these are, where they differ. The vertical
    axis reaches up to `most_y` at least, so that charts side by side can have the same.
    """

    title: str
    x_title: str
    y_title: str
    series: Sequence[Series]
    logarithmic_x: bool = False
    logarithmic_y: bool = False
    from_zero: bool = True
    crosses: str = ""
    lines: str = ""
    dots: str = ""
    most_y: float | None = None


class _Scale(NamedTuple):
    """From numbers to coordinates along one axis, with ticks at `marks` if there are any."""

    least: float
    most: float
    begin: float
    end: float
    logarithmic: bool
    marks: tuple[float, ...] = ()

    def at(self, value: float) -> float:
        least, most = self.least, self.most
        if self.logarithmic:
            value, least, most = (math.log10(each) for each in (value, least, most))
        return self.begin + (value - least) / (most - least) * (self.end - self.begin)

    def ticks(self) -> Sequence[float]:
        if self.marks:
            return self.marks
        if self.logarithmic:
            return _logarithmic_ticks(self.least, self.most)
        step = round_step((self.most - self.least) / MOST_TICKS)
        # A tick at an end of the axis is one, also where rounding puts it just outside.
        first, last = math.ceil(self.least / step - 1e-9), math.floor(self.most / step + 1e-9)
        return [tick * step for tick in range(first, last + 1)]


def svg_charts(
    charts: Sequence[Chart], columns: int | None = None, points: float | None = None
) -> str:
    """The charts from left to right, in rows of `columns`, with a legend of all series below.

    Given a width in points (1/72 inch), it is that of the print: charts are narrower, and there
    are fewer in a row where they would be too narrow to read; letters keep their size.
    """
    names = list(dict.fromkeys(each.name for chart in charts for each in chart.series))
    colours = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(names)}
    columns, each = columns or len(charts), WIDTH
    if points:
        room = points - 2 * EDGE
        columns = max(1, min(columns, int(room / LEAST_WIDTH)))
        each = room / columns
    titles = [wrapped(chart.title, TITLE, each - RIGHT) for chart in charts]
    below = (max(map(len, titles)) - 1) * LEADING * TITLE
    height = HEIGHT + below
    body = []
    for at, (chart, title) in enumerate(zip(charts, titles, strict=True)):
        row, column = divmod(at, columns)
        drawn, _ = heading(0, EDGE + TITLE, title, TITLE)
        drawn += moved(0, below, _chart(chart, each, colours))
        body += moved(EDGE + column * each, row * height, drawn)
    width, bottom = 2 * EDGE + each * columns, math.ceil(len(charts) / columns) * height
    below_all, bottom = _legend(
        _samples(charts, colours), EDGE + LEFT, bottom + EDGE + LEGEND / 2, width - EDGE
    )
    unit = "pt" if points else ""
    return document(width, bottom + LEGEND / 2, charts[0].title, [*body, *below_all], unit)


def _chart(chart: Chart, width: float, colours: dict[str, str]) -> list[str]:
    xs = [x for each in chart.series for x in each.x]
    ys = [y for each in chart.series for y in each.y if math.isfinite(y)]
    ys += [end for each in chart.series for ends in each.intervals for end in ends]
    ys += [] if chart.most_y is None else [chart.most_y]
    right, bottom = width - RIGHT, HEIGHT - BELOW
    x = _scale(xs, LEFT, right, chart.logarithmic_x, from_zero=False)
    if chart.logarithmic_x and len(choices := sorted(set(xs))) <= MOST_TICKS + 2:
        x = x._replace(marks=tuple(choices))
    y = _scale(ys, bottom, EDGE + ABOVE, chart.logarithmic_y, from_zero=chart.from_zero)
    body = _axes(chart, x, y)
    for each in chart.series:
        body.append(_drawn(each, x, y, colours[each.name]))
    return body


def _scale(
    values: Sequence[float], begin: float, end: float, logarithmic: bool, *, from_zero: bool
) -> _Scale:
    least, most = min(values, default=0.0), max(values, default=1.0)
    if logarithmic:
        least, most = least / (1 + ROOM), most * (1 + ROOM)
    else:
        least = min(least, 0.0) if from_zero else least
        most += ROOM * (most - least)
        most = most if most > least else least + 1
    return _Scale(least, most, begin, end, logarithmic)


def _logarithmic_ticks(least: float, most: float) -> list[float]:
    decades = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    for factors in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [factor * 10.0**decade for decade in decades for factor in factors]
        inside = [tick for tick in ticks if least <= tick <= most]
        if len(inside) <= MOST_TICKS + 2:
            return inside
    return inside


def _axes(chart: Chart, x: _Scale, y: _Scale) -> list[str]:
    body = [stroked([f"M{number(x.begin)} {number(y.at(tick))}H{number(x.end)}"
                     for tick in y.ticks()], GRID, 0.6)]  # fmt: skip
    body.append(stroked([f"M{number(x.begin)} {number(y.begin)}H{number(x.end)}"], QUIET_INK, 0.8))
    body.extend(
        text(x.at(tick), y.begin + SMALL + 3, f"{tick:g}", SMALL, "middle", QUIET_INK)
        for tick in x.ticks()
    )
    for tick in y.ticks():
        place = y.at(tick) + SMALL * MIDDLE
        body.append(text(x.begin - 4, place, f"{tick:g}", SMALL, "end", QUIET_INK))
    middle = (x.begin + x.end) / 2
    body.append(text(middle, y.begin + 2 * SMALL + 7, chart.x_title, SMALL, "middle", QUIET_INK))
    body.append(text(x.begin - LEFT, EDGE + ABOVE - 7, chart.y_title, SMALL, "start", QUIET_INK))
    return body


def _drawn(series: Series, x: _Scale, y: _Scale, colour: str) -> str:
    points = [
        (x.at(across), y.at(up)) if math.isfinite(up) else None
        for across, up in zip(series.x, series.y, strict=True)
    ]
    dots = "".join(
        _cross(*point, colour) if across in series.crossed else _dot(*point, colour)
        for across, point in zip(series.x, points, strict=True)
        if point and series.dotted
    )
    bars = [
        f"M{number(x.at(across))} {number(y.at(low))}V{number(y.at(high))}"
        for across, (low, high) in zip(series.x, series.intervals, strict=False)
    ]
    dots += stroked(bars, colour, BAR) if bars else ""
    if not series.joined:
        return dots
    pieces, begins = [], True
    for point in points:
        if point:
            pieces.append(f"{'M' if begins else 'L'}{number(point[0])} {number(point[1])}")
        begins = point is None
    return stroked(pieces, colour, LINE) + dots


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{number(x)}" cy="{number(y)}" r="{DOT}" fill="{colour}"/>'


def _cross(x: float, y: float, colour: str) -> str:
    arm = 1.4 * DOT
    there, back = f"l{number(2 * arm)} {number(2 * arm)}", f"l{number(2 * arm)} {number(-2 * arm)}"
    left, top, bottom = number(x - arm), number(y - arm), number(y + arm)
    return stroked([f"M{left} {top}{there}", f"M{left} {bottom}{back}"], colour, LINE)


def _samples(charts: Sequence[Chart], colours: dict[str, str]) -> list[Sample]:
    """The series' names, and the meanings of lines, dots and crosses."""
    half = SMALL * MIDDLE

    def line(colour: str, x: float, baseline: float) -> list[str]:
        return [stroked([f"M{number(x)} {number(baseline - half)}h14"], colour, 2 * LINE)]

    def thin(x: float, baseline: float) -> list[str]:
        return [stroked([f"M{number(x)} {number(baseline - half)}h14"], DARK_INK, LINE)]

    def dot(x: float, baseline: float) -> list[str]:
        bar = f"M{number(x + 9)} {number(baseline - half - 4)}v8"
        return [_dot(x + 9, baseline - half, DARK_INK) + stroked([bar], DARK_INK, BAR)]

    def cross(x: float, baseline: float) -> list[str]:
        return [_cross(x + 9, baseline - half, QUIET_INK)]

    samples = [Sample(name, partial(line, colour), 18) for name, colour in colours.items()]
    for draw, name in ((thin, "lines"), (dot, "dots"), (cross, "crosses")):
        meaning = next((said for chart in charts if (said := getattr(chart, name))), "")
        samples += [Sample(meaning, draw, 18)] if meaning else []
    return samples


def _legend(
    samples: Sequence[Sample], left: float, top: float, right: float
) -> tuple[list[str], float]:
    """The samples, in lines; and the middle of the last."""
    half = SMALL * MIDDLE
    body, _, baseline = legend(samples, left, top + half, right, LEGEND * 0.75)
    return body, baseline - half

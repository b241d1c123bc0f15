"""Memory of ranks over a step, part by part, as SVG for print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from bfpp.schedules.columns import Seconds, segment_starts
from bfpp.traces.figures.appearance import QUIET_INK
from bfpp.traces.figures.svg.elements import (
    MIDDLE,
    SMALL,
    Sample,
    box,
    document,
    filled,
    heading,
    labels,
    legend,
    number,
    stroked,
    text,
    wrapped,
)
from bfpp.traces.figures.time_axis import round_step, time_axis
from bfpp.traces.timeline.memory_curves import MemoryCurve, fullest
from bfpp.traces.timeline.memory_record import PARTS

FILLS = {
    "state": "#7d8791",
    "weights": "#a9b3bd",
    "gradients": "#c9d1d8",
    "workspace": "#dde3e8",
    "saved": "#1f5fa8",
    "transient": "#d9700f",
    "update": "#2f8f5b",
}
"""Colours of parts: greys for those that stay allocated for the whole step."""

WIDTH, EDGE, LEFT, TITLE = 720.0, 8.0, 60.0, 10.0
ROW, GAP, LEGEND, SWATCH = 44.0, 7.0, 16.0, 10.0
MOST_ROWS, COLUMNS = 16, 320
LIMIT = "#b8324f"


def svg_memory(curves: Sequence[MemoryCurve], title: str, seconds: float, device: float) -> str:
    """A row for each rank, to one scale, with the parts on top of one another.

    Of many ranks, some from the first to the last, and the fullest. A line marks the memory of
    the `device` where a rank needs more than half of it.
    """
    chosen = _shown(curves)
    most = max(float(curve.total.max()) for curve in curves)
    marks = [device] if most > device / 2 else []
    axis = _Axes(seconds, max([most, *marks]) * 1.05)
    names = [name for name in curves[0].parts if any(each.parts[name].any() for each in chosen)]
    colours = {PARTS[name]: colour for name, colour in FILLS.items()}
    body, last = heading(EDGE, EDGE + TITLE, wrapped(title, TITLE, WIDTH - 2 * EDGE), TITLE)
    top = last + LEGEND
    body.append(text(EDGE, top - 4, "memory allocated (GiB)", SMALL, ink=QUIET_INK))
    for curve in chosen:
        body += _row(curve.thinned(COLUMNS), names, colours, axis, top, marks)
        top += ROW + GAP
    body += _time(axis, top)
    body += _legend(names, colours, top + LEGEND + SMALL, marks)
    return document(WIDTH, top + 2 * LEGEND + SMALL, title, body)


def _shown(curves: Sequence[MemoryCurve]) -> list[MemoryCurve]:
    places = np.linspace(0, len(curves) - 1, min(MOST_ROWS, len(curves))).round().astype(int)
    chosen = {int(place) for place in places} | {curves.index(fullest(curves))}
    return [curves[place] for place in sorted(chosen)]


@dataclass(frozen=True)
class _Axes:
    seconds: float
    gigabytes: float

    def x(self, seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - EDGE) * seconds / self.seconds

    def height(self, gigabytes: float) -> float:
        return ROW * gigabytes / self.gigabytes


def _row(
    curve: MemoryCurve,
    names: Sequence[str],
    colours: Mapping[str, str],
    axis: _Axes,
    top: float,
    marks: Sequence[float],
) -> list[str]:
    """The parts of a rank, the total's scale, and the rank's name."""
    bottom, below = top + ROW, np.zeros(len(curve.time))
    body = []
    for name in names:
        above = below + curve.parts[name]
        body.append(filled([_area(curve.time, below, above, axis, bottom)], colours[name]))
        below = above
    for mark in marks:
        y = bottom - axis.height(mark)
        line = f"M{number(LEFT)} {number(y)}H{number(WIDTH - EDGE)}"
        body.append(stroked([line], LIMIT, 0.8, stroke_dasharray="4 2"))
    step = round_step(axis.gigabytes / 3)
    for tick in np.arange(0, axis.gigabytes, step).tolist():
        y = bottom - axis.height(tick)
        body.append(stroked([f"M{number(LEFT - 3)} {number(y)}h3"], QUIET_INK, 0.7))
        body.append(text(LEFT - 5, y + SMALL * MIDDLE, f"{tick:g}", SMALL, "end", QUIET_INK))
    body.append(
        stroked([f"M{number(LEFT)} {number(bottom)}H{number(WIDTH - EDGE)}"], QUIET_INK, 0.7)
    )
    body.append(text(EDGE, top + ROW / 2, f"rank {curve.rank}", SMALL))
    return body


def _area(time: Seconds, below: Seconds, above: Seconds, axis: _Axes, bottom: float) -> str:
    """The outline between two heights that are constant from each moment to the next."""
    end = axis.x(axis.seconds)
    upper, lower = (_steps(time, heights, axis, bottom) for heights in (above, below))
    there = "".join(
        f"V{number(y)}H{number(x)}"
        for (_, y), (x, _) in zip(upper, [*upper[1:], (end, 0.0)], strict=True)
    )
    back = "".join(f"V{number(y)}H{number(x)}" for x, y in reversed(lower))
    return f"M{number(upper[0][0])} {number(upper[0][1])}{there}{back}z"


def _steps(
    time: Seconds, heights: Seconds, axis: _Axes, bottom: float
) -> list[tuple[float, float]]:
    """Points at which a height changes, with the new height."""
    changes = np.flatnonzero(segment_starts(heights))
    return [
        (axis.x(moment), bottom - axis.height(height))
        for moment, height in zip(time[changes].tolist(), heights[changes].tolist(), strict=True)
    ]


def _time(axis: _Axes, top: float) -> list[str]:
    times = time_axis(axis.seconds)
    places = [
        (axis.x(seconds), top + SMALL, name)
        for seconds, name in zip(times.tick_seconds, times.tick_labels, strict=True)
    ]
    unit = text(EDGE, top + SMALL, f"time ({times.unit})", SMALL, ink=QUIET_INK)
    return [labels(places, SMALL, QUIET_INK), unit]


def _legend(
    names: Sequence[str], colours: Mapping[str, str], baseline: float, marks: Sequence[float]
) -> list[str]:
    def swatch(colour: str, x: float, y: float) -> list[str]:
        return [filled([box(x, y - 6.5, x + SWATCH, y + 1.5)], colour)]

    def line(x: float, y: float) -> list[str]:
        return [stroked([f"M{number(x)} {number(y - 2.5)}h14"], LIMIT, 0.8)]

    samples = [Sample(name, partial(swatch, colours[name]), SWATCH + 3) for name in names]
    samples += [Sample(f"device memory: {mark:.4g} GiB", line, 18) for mark in marks]
    return legend(samples, LEFT, baseline, math.inf, 0, gap=9)[0]

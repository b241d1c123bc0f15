"""Predicted against measured numbers, as a printable SVG: one colour for each method.

Both axes have one scale, so that a perfect prediction lies on the diagonal;
the band around it is a tenth more and less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from bfpp.traces.figures.appearance import DARK_INK, IDLE, QUIET_INK
from bfpp.traces.figures.svg.elements import document, number, stroked, text
from bfpp.traces.figures.time_axis import round_step

COLOURS = ("#2166ac", "#d97706", "#2e8b57", "#8e44ad", "#c2185b", "#5b6673")
SIDE, LEFT, TOP, BOTTOM, RIGHT = 420.0, 64.0, 48.0, 52.0, 150.0
RADIUS, SIZE = 4.0, 12.0
BAND = 0.1
TICKS = 6


class Point(NamedTuple):
    """One number, measured and predicted, by a method."""

    method: str
    measured: float
    predicted: float


def scatter(points: Sequence[Point], title: str, unit: str) -> str:
    """The figure as SVG text; raises `ValueError` if there are no points."""
    if not points:
        raise ValueError("there are no points to draw")
    largest = max(max(point.measured, point.predicted) for point in points)
    step = round_step(max(largest, 1e-12) / TICKS)
    end = step * math.ceil(largest / step)
    methods = [*dict.fromkeys(point.method for point in points)]
    colours = {method: COLOURS[at % len(COLOURS)] for at, method in enumerate(methods)}
    body = [_band(), *_axes(step, end, unit), _diagonal()]
    body += [_dot(point, end, colours[point.method]) for point in points]
    body += _legend(colours)
    body.append(text(LEFT, TOP - 20, title, SIZE + 2))
    return document(LEFT + SIDE + RIGHT, TOP + SIDE + BOTTOM, title, body)


def _x(share: float) -> float:
    return LEFT + SIDE * share


def _y(share: float) -> float:
    return TOP + SIDE * (1 - share)


def _band() -> str:
    """The tenth above and below the diagonal, clipped to the axes."""
    over, under = 1 / (1 + BAND), 1 - BAND
    corners = [(0.0, 0.0), (over, 1.0), (1.0, 1.0), (1.0, under)]
    path = "L".join(f"{number(_x(x))} {number(_y(y))}" for x, y in corners)
    return f'<path fill="{IDLE}" d="M{path}z"/>'


def _diagonal() -> str:
    line = f"M{number(_x(0))} {number(_y(0))}L{number(_x(1))} {number(_y(1))}"
    return stroked([line], QUIET_INK, 1, stroke_dasharray="4 3")


def _axes(step: float, end: float, unit: str) -> list[str]:
    frame = f"M{number(_x(0))} {number(_y(1))}V{number(_y(0))}H{number(_x(1))}"
    parts = [stroked([frame], DARK_INK, 1)]
    for tick in range(round(end / step) + 1):
        value = tick * step
        share = value / end
        parts.append(text(_x(share), _y(0) + 18, f"{value:g}", SIZE, "middle", QUIET_INK))
        parts.append(text(_x(0) - 8, _y(share) + 4, f"{value:g}", SIZE, "end", QUIET_INK))
    parts.append(text(_x(0.5), _y(0) + 40, f"measured, {unit}", SIZE, "middle"))
    middle = f"{number(_x(0) - 44)} {number(_y(0.5))}"
    label = text(_x(0) - 44, _y(0.5), f"predicted, {unit}", SIZE, "middle")
    parts.append(f'<g transform="rotate(-90 {middle})">{label}</g>')
    return parts


def _dot(point: Point, end: float, colour: str) -> str:
    x, y = _x(point.measured / end), _y(point.predicted / end)
    return _circle(x, y, colour)


def _circle(x: float, y: float, colour: str) -> str:
    return (
        f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(RADIUS)}" fill="{colour}" '
        f'fill-opacity="0.8" stroke="#ffffff" stroke-width="0.6"/>'
    )


def _legend(colours: dict[str, str]) -> list[str]:
    parts = []
    for line, (method, colour) in enumerate(colours.items()):
        y = TOP + 12 + 20 * line
        parts.append(_circle(_x(1) + 20, y - 4, colour))
        parts.append(text(_x(1) + 32, y, method, SIZE))
    return parts

"""Placement of layers on ranks, as SVG for print (the paper's Figure 3).

A rank is a row and a layer a column, so that the path of a micro-batch reads
from left to right: down the ranks once in a standard placement, and round and
round in a looping one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from bfpp.schedules import Layout, Operation
from bfpp.traces.figures.appearance import IDLE, QUIET_INK, fill, ink
from bfpp.traces.figures.svg.elements import (
    MIDDLE,
    SMALL,
    box,
    document,
    filled,
    heading,
    labels,
    number,
    stroked,
    text,
    wrapped,
)

EDGE, TITLE = 6.0, 10.0
MARGIN, BETWEEN = 34.0, 16.0
COLUMN, BOX, BOX_HEIGHT, ROW = 20.0, 13.0, 15.0, 22.0
ARROW = 3.2
LEAST_COLUMN, LEAST_SMALL = 10.0, 5.0


class _Grid(NamedTuple):
    """The upper left corner of a layout's rows, and its shape."""

    left: float
    top: float
    layout: Layout
    column: float

    @property
    def box(self) -> float:
        """The width of a layer's box."""
        return BOX * self.column / COLUMN

    @property
    def small(self) -> float:
        """The size of layers' numbers."""
        return max(LEAST_SMALL, min(SMALL, SMALL * self.column / COLUMN))

    def rank_of(self, layer: int) -> int:
        return int(self.layout.rank_of_unit[layer])

    def corner(self, layer: int) -> tuple[float, float]:
        """The upper left corner of a layer's box."""
        x = self.left + layer * self.column + (self.column - self.box) / 2
        return x, self.top + self.rank_of(layer) * ROW + (ROW - BOX_HEIGHT) / 2

    @property
    def width(self) -> float:
        return self.layout.units * self.column

    @property
    def height(self) -> float:
        return self.layout.pp * ROW


def svg_placements(layouts: Sequence[tuple[str, Layout]], points: float | None = None) -> str:
    """The placements side by side, each with its caption.

    One layer is one unit, and has its number on it and below it. The line is
    the path of a micro-batch's forward pass. Given a width in points (1/72 inch),
    it is that of the print, and placements are below one another where that takes it.
    """
    units = [layout.units for _, layout in layouts] or [0]
    column, columns = COLUMN, len(layouts)
    if points:
        share = (points - 2 * EDGE + BETWEEN) / len(units) - MARGIN - BETWEEN
        columns = columns if share >= LEAST_COLUMN * max(units) else 1
        room = points - 2 * EDGE if columns == 1 else share + MARGIN
        column = min(COLUMN, (room - MARGIN) / max(units))
    left, top, body, right, bottom = EDGE, EDGE, [], EDGE, EDGE
    for at, (title, layout) in enumerate(layouts):
        if at and at % columns == 0:
            left, top = EDGE, bottom + BETWEEN
        lines = wrapped(title, TITLE, MARGIN + column * layout.units)
        caption, last = heading(left, top + TITLE, lines, TITLE)
        grid = _Grid(left + MARGIN, last + 6, layout, column)
        body += caption
        body += _rows(grid) + _path(grid) + _boxes(grid) + _axis(grid)
        right = max(right, grid.left + grid.width)
        left = grid.left + grid.width + BETWEEN
        bottom = max(bottom, grid.top + grid.height + 2 * SMALL + 6)
    title = "; ".join(title for title, _ in layouts) or "no placements"
    return document(points or right + EDGE, bottom + EDGE, title, body, "pt" if points else "")


def _rows(grid: _Grid) -> list[str]:
    """A light band and a name for each rank."""
    ranks = range(grid.layout.pp)
    bands = [_band(grid, rank) for rank in ranks]
    names = [
        text(
            grid.left - 4,
            grid.top + (rank + 0.5) * ROW + SMALL * MIDDLE,
            f"rank {rank}",
            SMALL,
            "end",
            QUIET_INK,
        )
        for rank in ranks
    ]
    return [filled(bands, IDLE), *names]


def _band(grid: _Grid, rank: int) -> str:
    top = grid.top + rank * ROW
    return box(grid.left, top + 1, grid.left + grid.width, top + ROW - 1)


def _path(grid: _Grid) -> list[str]:
    """From box to box: along the row, or between two columns to another row."""
    lines, heads = [], []
    for layer, following in pairwise(range(grid.layout.units)):
        x, y = grid.corner(layer)
        to_x, to_y = grid.corner(following)
        middle, to_middle = y + BOX_HEIGHT / 2, to_y + BOX_HEIGHT / 2
        turn = (x + grid.box + to_x - ARROW) / 2
        lines.append(
            f"M{number(x + grid.box)} {number(middle)}H{number(turn)}"
            f"V{number(to_middle)}H{number(to_x - ARROW)}"
        )
        heads.append(_head(to_x, to_middle))
    if not lines:
        return []
    return [stroked(lines, QUIET_INK, 0.9, stroke_linejoin="round"), _heads(heads)]


def _head(x: float, y: float) -> str:
    half = ARROW * 0.6
    return f"M{number(x)} {number(y)}l-{number(ARROW)} -{number(half)}v{number(2 * half)}z"


def _heads(pieces: Sequence[str]) -> str:
    return f'<path fill="{QUIET_INK}" d="{"".join(pieces)}"/>'


def _boxes(grid: _Grid) -> list[str]:
    """The layers, darker on earlier ranks, with their numbers."""
    ranks = grid.layout.pp
    elements = []
    for layer in range(grid.layout.units):
        x, y = grid.corner(layer)
        colour = fill(Operation.FORWARD, grid.rank_of(layer), ranks)
        place = (x + grid.box / 2, y + BOX_HEIGHT / 2 + grid.small * MIDDLE, str(layer))
        elements += [
            filled([box(x, y, x + grid.box, y + BOX_HEIGHT)], colour),
            labels([place], grid.small, ink(colour)),
        ]
    return elements


def _axis(grid: _Grid) -> list[str]:
    baseline = grid.top + grid.height + SMALL + 1
    places = [
        (grid.left + (layer + 0.5) * grid.column, baseline, str(layer))
        for layer in range(grid.layout.units)
    ]
    return [
        labels(places, grid.small, QUIET_INK),
        text(grid.left + grid.width / 2, baseline + SMALL + 3, "layer", SMALL, "middle", QUIET_INK),
    ]

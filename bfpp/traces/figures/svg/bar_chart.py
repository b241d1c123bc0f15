"""Numbers as bars, as SVG for print: a panel for each quantity, a row for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bfpp.traces.figures.appearance import QUIET_INK
from bfpp.traces.figures.svg.elements import (
    MIDDLE,
    SMALL,
    box,
    document,
    filled,
    moved,
    text,
    text_width,
)
from bfpp.traces.figures.svg.line_chart import COLOURS

PANEL, LEAST_PANEL, EDGE, BETWEEN = 170.0, 110.0, 8.0, 22.0
ROW, THICK = 17.0, 12.0
TITLE = 9.5
SPACE = 5.0
TOP = EDGE + TITLE + 2 * SPACE


@dataclass(frozen=True)
class Bars:
    """A quantity of each method."""

    title: str
    values: Mapping[str, float]


def svg_bars(panels: Sequence[Bars], title: str, points: float | None = None) -> str:
    """The panels side by side, all from zero, with the methods' names on the left.

    Given a width in points (1/72 inch), it is that of the print: panels are narrower, and below
    one another where they would be too narrow to read; letters keep their size.
    """
    names = list(dict.fromkeys(name for panel in panels for name in panel.values))
    left = EDGE + max(text_width(name, SMALL) for name in names) + SPACE
    columns, wide = len(panels), PANEL
    if points:
        room = points - left - EDGE + BETWEEN
        columns = columns if room / columns >= LEAST_PANEL + BETWEEN else 1
        wide = room / columns - BETWEEN
    height = TOP + ROW * len(names)
    body = []
    for at, panel in enumerate(panels):
        row, column = divmod(at, columns)
        if not column:
            body += moved(0, row * height, _named(names, left - SPACE))
        body += moved(left + column * (wide + BETWEEN), row * height, _panel(panel, names, wide))
    width = left + columns * (wide + BETWEEN) - BETWEEN + EDGE
    total = height * (len(panels) // columns) + EDGE
    return document(width, total, title, body, "pt" if points else "")


def _named(names: Sequence[str], right: float) -> list[str]:
    return [
        text(right, _baseline(row), name, SMALL, "end", QUIET_INK) for row, name in enumerate(names)
    ]


def _panel(panel: Bars, names: Sequence[str], wide: float) -> list[str]:
    written = {name: f"{value:.1f}" for name, value in panel.values.items()}
    room = max(text_width(each, SMALL) for each in written.values()) + SPACE
    scale = (wide - room) / (max(panel.values.values()) or 1.0)
    body = [text(0, EDGE + TITLE, panel.title, TITLE)]
    for row, name in enumerate(names):
        if name not in panel.values:
            continue
        top, end = TOP + ROW * row, scale * panel.values[name]
        body.append(filled([box(0, top, end, top + THICK)], COLOURS[row % len(COLOURS)]))
        body.append(text(end + SPACE, _baseline(row), written[name], SMALL))
    return body


def _baseline(row: int) -> float:
    return TOP + ROW * row + THICK / 2 + SMALL * MIDDLE

"""Operations of many workers below each other to one time scale, as SVG: a row for each worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from bfpp.schedules.columns import Integers, Seconds
from bfpp.traces.figures.appearance import IDLE, QUIET_INK
from bfpp.traces.figures.svg.elements import (
    MIDDLE,
    SMALL,
    Sample,
    box,
    document,
    filled,
    legend,
    number,
    stroked,
    text,
    text_width,
)
from bfpp.traces.figures.time_axis import time_axis

WIDTH, EDGE, SPACE = 960.0, 6.0, 6.0
TITLE = 10.0
ROW, ROW_GAP, PANEL_GAP = 13.0, 2.0, 14.0
SWATCH, LINE = 16.0, 13.0
GRID = "#dfe3e8"


@dataclass(frozen=True, eq=False)
class WorkerRows:
    """A step: of each operation, the row and colour that it has, and its times from 0 on."""

    title: str
    rows: Sequence[str]
    row: Integers
    colour: Integers
    start: Seconds
    end: Seconds


def svg_worker_rows(panels: Sequence[WorkerRows], colours: Mapping[str, str]) -> str:
    """The panels, and a legend of `colours` by name; of two operations, the later colour is on top.

    The `colour` of an operation is its place among the colours.
    """
    names = [name for panel in panels for name in panel.rows]
    left = EDGE + max(text_width(name, SMALL) for name in names) + SPACE
    seconds = max(float(panel.end.max()) for panel in panels)
    scale = (WIDTH - EDGE - left) / (seconds or 1.0)
    body, y = list[str](), EDGE
    for panel in panels:
        y += TITLE
        body.append(text(EDGE, y, panel.title, TITLE))
        y += SPACE
        body += _panel(panel, list(colours.values()), left, y, scale)
        y += len(panel.rows) * (ROW + ROW_GAP) + PANEL_GAP
    axis = time_axis(seconds)
    y -= PANEL_GAP - SPACE
    for at, label in zip(axis.tick_seconds, axis.tick_labels, strict=True):
        x = left + at * scale
        body.insert(0, stroked([f"M{number(x)} {number(EDGE)}V{number(y)}"], GRID, 0.5))
        body.append(text(x, y + SMALL, label, SMALL, "middle", QUIET_INK))
    body.append(text(left - SPACE, y + SMALL, axis.unit, SMALL, "end", QUIET_INK))
    samples = [Sample(name, partial(_swatch, colour), SWATCH) for name, colour in colours.items()]
    drawn, _, y = legend(samples, left, y + 2 * SMALL + SPACE, WIDTH - EDGE, LINE)
    title = "; ".join(panel.title for panel in panels)
    return document(WIDTH, y + EDGE, title, [*body, *drawn])


def _panel(
    panel: WorkerRows, colours: Sequence[str], left: float, top: float, scale: float
) -> list[str]:
    body, length = [], float(panel.end.max()) * scale
    for row, name in enumerate(panel.rows):
        y = top + row * (ROW + ROW_GAP)
        body.append(filled([box(left, y, left + length, y + ROW)], IDLE))
        baseline = y + ROW / 2 + MIDDLE * SMALL
        body.append(text(left - SPACE, baseline, name, SMALL, "end", QUIET_INK))
    for colour, drawn in enumerate(colours):
        own = panel.colour == colour
        begins, ends = left + panel.start[own] * scale, left + panel.end[own] * scale
        tops = top + panel.row[own] * (ROW + ROW_GAP)
        pieces = [
            box(begin, y, max(end, begin + 0.1), y + ROW)
            for begin, end, y in zip(begins.tolist(), ends.tolist(), tops.tolist(), strict=True)
        ]
        if pieces:
            body.append(
                f'<path stroke="#ffffff" stroke-width="0.4" fill="{drawn}" d="{"".join(pieces)}"/>'
            )
    return body


def _swatch(colour: str, left: float, baseline: float) -> list[str]:
    return [filled([box(left, baseline - 6, left + SWATCH - 4, baseline)], colour)]

"""Numbers as bars, as SVG for print: a panel for each quantity, a row for each method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bfpp.traces.appearance import QUIET_INK
from bfpp.traces.chart import COLOURS
from bfpp.traces.svg_elements import box, document, filled, text, text_width

PANEL, EDGE, BETWEEN = 170.0, 8.0, 22.0
ROW, THICK = 17.0, 12.0
TITLE, SMALL, MIDDLE = 9.5, 7.5, 0.36
SPACE = 5.0


@dataclass(frozen=True)
class Bars:
    """A quantity of each method."""

    title: str
    values: Mapping[str, float]


def svg_bars(panels: list[Bars], title: str) -> str:
    """The panels side by side, all from zero, with the methods' names on the left."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.values))
    left = EDGE + max(text_width(name, SMALL) for name in names) + SPACE
    top = EDGE + TITLE + 2 * SPACE
    body = [
        text(left - SPACE, _baseline(top, row), name, SMALL, "end", QUIET_INK)
        for row, name in enumerate(names)
    ]
    width = left + len(panels) * (PANEL + BETWEEN) - BETWEEN + EDGE
    for panel in panels:
        body += _panel(panel, names, left, top)
        left += PANEL + BETWEEN
    return document(width, top + ROW * len(names) + EDGE, title, body)


def _panel(panel: Bars, names: list[str], left: float, top: float) -> list[str]:
    written = {name: f"{value:.1f}" for name, value in panel.values.items()}
    room = max(text_width(each, SMALL) for each in written.values()) + SPACE
    scale = (PANEL - room) / (max(panel.values.values()) or 1.0)
    body = [text(left, EDGE + TITLE, panel.title, TITLE)]
    for row, name in enumerate(names):
        if name not in panel.values:
            continue
        begin, end = top + ROW * row, left + scale * panel.values[name]
        body.append(filled([box(left, begin, end, begin + THICK)], COLOURS[row % len(COLOURS)]))
        body.append(text(end + SPACE, _baseline(top, row), written[name], SMALL))
    return body


def _baseline(top: float, row: int) -> float:
    return top + ROW * row + THICK / 2 + SMALL * MIDDLE

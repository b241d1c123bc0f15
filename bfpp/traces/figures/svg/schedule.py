"""Schedules below each other to one time scale, as SVG for print (the paper's Figure 4).

For each rank a row of compute and, half as high, a row of gathers and
reductions; channels too if they are asked for. The file is self-contained: no
script, no style sheet, and fonts that every machine has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple

from bfpp.schedules import Operation
from bfpp.schedules.operations.row import Scope
from bfpp.schedules.operations.streams import COMPUTE
from bfpp.traces.figures.appearance import (
    COMPUTE_AND_DATA,
    IDLE,
    QUIET_INK,
    LaneRow,
    drawn_operations,
    drawn_rows,
    fill,
    ink,
)
from bfpp.traces.figures.bars import Bar, bars
from bfpp.traces.figures.panel import Panel
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
    text_width,
    wrapped,
)
from bfpp.traces.figures.time_axis import time_axis
from bfpp.traces.timeline.metrics import bubble
from bfpp.traces.timeline.units import in_words

# Lengths are in user units: pixels, or points where a width of the print is given.
WIDTH, EDGE = 720.0, 6.0
TITLE = 10.0
ROW, LEAST_ROW, MOST_ROWS_HEIGHT = 14.0, 3.0, 560.0
ROW_GAP, RANK_GAP, PANEL_GAP, AXIS_GAP, BEFORE_ROW = 1.0, 3.0, 12.0, 5.0, 6.0
LEAST_DISTANCE = 3.0
LETTERS = (8.5, 6.0, 5.0)
SWATCH, LINE = 16.5, 13.0
TICK, MOST_TICKS = 30.0, 10
"""User units that a tick and its number have for themselves, at least."""
NUMBERS = {Scope.CELL: "micro-batch", Scope.UNIT: "unit for all-gathers and reductions"}
GRID, SEAM = "#dfe3e8", "#ffffff"


def svg(panels: Sequence[Panel], points: float | None = None) -> str:
    """The panels below each other to one time scale, with a time axis and a legend.

    Given a width in points (1/72 inch), it is that of the print, and letters have 5 points at least
    and 7.5 next to the tasks: time is drawn as narrow as that takes, letters are not. Without, a
    user unit is a pixel.
    """
    drawings = [_Drawing(panel, drawn_rows(panel.timeline, panel.streams)) for panel in panels]
    frame = _frame(drawings, points or WIDTH)
    body, y, counted = [], EDGE, set[Scope]()
    for drawing in drawings:
        elements, y, counts = _panel(drawing, frame, y)
        body += elements
        counted |= counts
        y += PANEL_GAP
    axis, y = _axis(frame, y - PANEL_GAP + AXIS_GAP)
    below, y = _legend(drawings, counted, frame, y)
    title = "; ".join(panel.title for panel in panels) or "no schedules"
    elements = [*body, *axis, *below]
    return document(frame.width, y + EDGE, title, elements, "pt" if points else "")


class _Drawing(NamedTuple):
    panel: Panel
    rows: list[LaneRow]

    @property
    def shows_channels(self) -> bool:
        return any(row.stream not in COMPUTE_AND_DATA for row in self.rows)


class _Frame(NamedTuple):
    """The horizontal extent of time in user units, and its seconds."""

    left: float
    seconds: float
    row: float
    width: float

    @property
    def right(self) -> float:
        return self.width - EDGE

    @property
    def scale(self) -> float:
        return (self.right - self.left) / (self.seconds or 1.0)


def _frame(drawings: Sequence[_Drawing], width: float) -> _Frame:
    named = [_row_name(row, drawing) for drawing in drawings for row in drawing.rows]
    margin = max(text_width(name, SMALL) for name in ["time (ms)", *named])
    seconds = max((drawing.panel.timeline.step_time for drawing in drawings), default=0.0)
    most = max((sum(map(_relative_height, drawing.rows)) for drawing in drawings), default=0.0)
    row = min(max(MOST_ROWS_HEIGHT / most, LEAST_ROW), ROW) if most else ROW
    return _Frame(EDGE + margin + BEFORE_ROW, seconds, row, width)


def _relative_height(row: LaneRow) -> float:
    return 1.0 if row.stream is COMPUTE else 0.5


def _row_name(row: LaneRow, drawing: _Drawing) -> str:
    if row.stream is COMPUTE:
        return f"rank {row.rank}"
    return row.title if drawing.shows_channels else ""


def _panel(
    drawing: _Drawing, frame: _Frame, top: float
) -> tuple[list[str], float, AbstractSet[Scope]]:
    """A panel's elements, the y at which it ends, and the unit of its labels."""
    timeline = drawing.panel.timeline
    baseline = top + TITLE
    note = f"{in_words(timeline.step_time)}, bubble {100 * bubble(timeline):.3g} %"
    reserved = text_width(note, SMALL) + TITLE
    lines = wrapped(drawing.panel.title, TITLE, frame.right - EDGE, reserved)
    title, last = heading(EDGE, baseline, lines, TITLE)
    elements = [*title, text(frame.right, baseline, note, SMALL, "end", QUIET_INK)]
    tops, bottom = _row_tops(drawing, frame, last + 5)
    elements += _tracks(drawing, frame, tops)
    drawn = _bars(drawing, frame, tops)
    return elements + drawn.elements(), bottom, drawn.counted


def _row_tops(drawing: _Drawing, frame: _Frame, y: float) -> tuple[list[float], float]:
    tops: list[float] = []
    for above, row in zip([None, *drawing.rows], drawing.rows, strict=False):
        if above:
            y += ROW_GAP if above.rank == row.rank else RANK_GAP
        tops.append(y)
        y += frame.row * _relative_height(row)
    return tops, y


def _tracks(drawing: _Drawing, frame: _Frame, tops: Sequence[float]) -> list[str]:
    """The rows' names, and a light track for the length of the step, visible where idle."""
    width = drawing.panel.timeline.step_time * frame.scale
    tracks, elements = [], []
    for row, top in zip(drawing.rows, tops, strict=True):
        height = frame.row * _relative_height(row)
        tracks.append(box(frame.left, top, frame.left + width, top + height))
        size = min(SMALL, height)
        if name := _row_name(row, drawing):
            middle = top + height / 2 + size * 0.35
            elements.append(text(frame.left - BEFORE_ROW, middle, name, size, "end", QUIET_INK))
    return [filled(tracks, IDLE), *elements] if tracks else []


class _Ink:
    """Boxes, edges, seams and labels of a panel's rows, collected by style."""

    def __init__(self) -> None:
        self.boxes: dict[str, list[str]] = defaultdict(list)
        self.edges: list[str] = []
        self.seams: list[str] = []
        self.labels: dict[tuple[float, str], list[tuple[float, float, str]]] = defaultdict(list)
        self.counted: set[Scope] = set()

    def add(self, bar: Bar, left: float, top: float, height: float) -> None:
        """Add a bar that starts at `left`: its box, its edge and its seams."""
        width = bar.right - bar.left
        self.boxes[bar.colour].append(box(left, top, left + width, top + height))
        if width >= LEAST_DISTANCE:
            (self.seams if bar.joined else self.edges).append(_upright(left, top, height))
        if width >= LEAST_DISTANCE * (len(bar.seams) + 1):
            self.seams += [_upright(left - bar.left + seam, top, height) for seam in bar.seams]

    def write(self, bar: Bar, x: float, middle: float, size: float) -> None:
        """Add a bar's label, centred on `x` and `middle`."""
        self.labels[size, ink(bar.colour)].append((x, middle + size * MIDDLE, bar.label))
        self.counted.add(bar.counts)

    def elements(self) -> list[str]:
        """Boxes first, labels last."""
        drawn = [filled(pieces, colour) for colour, pieces in self.boxes.items()]
        drawn.append(stroked(self.seams, SEAM, 0.5, stroke_opacity="0.45"))
        drawn.append(stroked(self.edges, SEAM, 0.7))
        return drawn + [labels(places, *style) for style, places in self.labels.items()]


def _upright(x: float, top: float, height: float) -> str:
    return f"M{number(x)} {number(top)}v{number(height)}"


def _bars(drawing: _Drawing, frame: _Frame, tops: Sequence[float]) -> _Ink:
    drawn = _Ink()
    for row, top in zip(drawing.rows, tops, strict=True):
        height = frame.row * _relative_height(row)
        of_row = bars(drawing.panel.timeline, row, frame.scale)
        longest = max((bar.label for bar in of_row), key=len)
        for bar in of_row:
            drawn.add(bar, frame.left + bar.left, top, height)
            if bar.label and (size := _label_size(longest, bar.right - bar.left, height)):
                middle = frame.left + (bar.left + bar.right) / 2
                drawn.write(bar, middle, top + height / 2, size)
    return drawn


def _label_size(longest: str, width: float, height: float) -> float:
    """The font size at which any label of the row would fit; 0 if there is none.

    By the longest label, lest the numbers of a row stop at 9.
    """
    fitting = (
        size for size in LETTERS if size <= height * 0.75 and text_width(longest, size) + 1 <= width
    )
    return next(fitting, 0.0)


def _axis(frame: _Frame, top: float) -> tuple[list[str], float]:
    """A line with ticks, as long as the longest panel, and the y at which it ends."""
    room = int((frame.right - frame.left) / TICK)
    axis = time_axis(frame.seconds, min(max(room, 1), MOST_TICKS))
    ticks = [frame.left + seconds * frame.scale for seconds in axis.tick_seconds]
    line = f"M{number(frame.left)} {number(top)}H{number(frame.right)}"
    baseline = top + 4 + SMALL
    marks = [f"M{number(tick)} {number(top)}v3" for tick in ticks]
    places = [(x, baseline, name) for x, name in zip(ticks, axis.tick_labels, strict=True)]
    unit = text(frame.left - BEFORE_ROW, baseline, f"time ({axis.unit})", SMALL, "end", QUIET_INK)
    elements = [stroked([line, *marks], QUIET_INK, 0.7), unit, labels(places, SMALL, QUIET_INK)]
    return elements, baseline


def _legend(
    drawings: Sequence[_Drawing], counted: AbstractSet[Scope], frame: _Frame, top: float
) -> tuple[list[str], float]:
    """The meaning of each colour and number, in as many lines as that takes."""
    shown = {
        (operation, operation.called(graph.communication))
        for drawing in drawings
        for graph in [drawing.panel.timeline.graph]
        for operation in drawn_operations(graph, drawing.rows)
    }
    samples = [Sample(name, partial(_swatch, each), SWATCH + 3) for each, name in sorted(shown)]
    elements, x, baseline = legend(samples, frame.left, top + LINE, frame.right, LINE)
    if counted:
        note = f"numbers: {'; '.join(NUMBERS[each] for each in sorted(counted))}"
        if x + text_width(note, SMALL) > frame.right:
            baseline += LINE
        elements.append(text(frame.right, baseline, note, SMALL, "end", QUIET_INK))
    return elements, baseline + 2


def _swatch(operation: Operation, left: float, baseline: float) -> list[str]:
    """The colours of the first micro-batch, of one halfway and of the last."""
    third = SWATCH / 3
    return [
        filled(
            [box(left + at * third, baseline - 6.5, left + (at + 1) * third, baseline + 1.5)],
            fill(operation, at, 3),
        )
        for at in range(3)
    ]

"""What a device holds over a step, part by part, and its figure for print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bfpp.schedules.columns import NONE, Integers, Seconds, among
from bfpp.schedules.counts import live_microbatches
from bfpp.schedules.operations import SAVED, writers
from bfpp.traces.appearance import QUIET_INK
from bfpp.traces.svg_elements import (
    box,
    document,
    filled,
    heading,
    labels,
    number,
    stroked,
    text,
    text_width,
    wrapped,
)
from bfpp.traces.time_axis import round_step, time_axis
from bfpp.traces.timeline import Timeline

GIGABYTE = 2**30

PARTS = {
    "state": "training state",
    "weights": "weights",
    "gradients": "gradients",
    "saved": "saved activations",
    "transient": "transient activations",
    "update": "optimizer step",
    "workspace": "workspaces",
}
"""What the parts of a device's memory are called."""

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

IN_FLIGHT = "micro-batches in flight"

WIDTH, EDGE, LEFT, TITLE, SMALL = 720.0, 8.0, 60.0, 10.0, 7.5
ROW, GAP, LEGEND, SWATCH = 44.0, 7.0, 16.0, 10.0
MOST_ROWS, COLUMNS = 16, 320
LIMIT = "#b8324f"


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """The memory of one rank's devices: `parts` hold GiB from each moment of `time` to the next.

    Moments are seconds from the step's first start. `task` is the compute step that runs then,
    or `NONE`.
    """

    rank: int
    time: Seconds
    parts: Mapping[str, Seconds]
    task: Integers

    @cached_property
    def total(self) -> Seconds:
        """All parts together."""
        total: Seconds = np.sum(list(self.parts.values()), axis=0)
        return total

    @cached_property
    def peak(self) -> int:
        """The number of the first moment at which most is held; during a task, if there is one."""
        highest = np.flatnonzero(self.total == self.total.max())
        return int(highest[(self.task[highest] == NONE).argmin()])

    def thinned(self, moments: int) -> MemoryCurve:
        """The same with fewer moments: of each equal stretch of time, when most is held."""
        if len(self.time) <= moments:
            return self
        stretch = np.floor(self.time / self.time[-1] * (moments - 1))
        in_order = np.lexsort((-self.total, stretch))
        first = np.append(True, np.diff(stretch[in_order]) > 0)
        kept = np.sort(in_order[first])
        parts = {name: part[kept] for name, part in self.parts.items()}
        return MemoryCurve(self.rank, self.time[kept], parts, self.task[kept])


def in_flight_over_time(timeline: Timeline) -> list[MemoryCurve]:
    """For each rank, the micro-batches in flight: each as large as all that the rank saves of one.

    They are the one part of these curves, which are no GiB. Activations are held from the start
    of the pass that saves them to the end of the one that needs them last.
    """
    graph, live = timeline.graph, live_microbatches(timeline.graph)
    saves = among(graph.operation, writers(SAVED))
    moment = np.where(saves, timeline.start, timeline.end) - timeline.first_start
    curves = []
    for rank in range(graph.layout.pp):
        own = timeline.compute_tasks(rank)
        own = own[np.argsort(moment[own], kind="stable")]
        time, held = np.append(0.0, moment[own]), np.append(0.0, live[own])
        curves.append(MemoryCurve(rank, time, {IN_FLIGHT: held}, np.append(NONE, own)))
    return curves


def fullest(curves: Sequence[MemoryCurve]) -> MemoryCurve:
    """The one with the highest peak, or the first of those."""
    return max(curves, key=lambda curve: (curve.total[curve.peak], -curve.rank))


def svg_memory(curves: Sequence[MemoryCurve], title: str, seconds: float, device: float) -> str:
    """A row for each rank, to one scale, with the parts on top of one another.

    Of many ranks, some from the first to the last, and the fullest. A line marks the memory of
    the `device` where what is held comes near it.
    """
    chosen = _shown(curves)
    most = max(float(curve.total.max()) for curve in curves)
    marks = [device] if most > device / 2 else []
    axis = _Axes(seconds, max([most, *marks]) * 1.05)
    names = [name for name in curves[0].parts if any(each.parts[name].any() for each in chosen)]
    colours = {PARTS[name]: colour for name, colour in FILLS.items()}
    body, last = heading(EDGE, EDGE + TITLE, wrapped(title, TITLE, WIDTH - 2 * EDGE), TITLE)
    top = last + LEGEND
    body.append(text(EDGE, top - 4, "memory allocated (GB = 2^30 bytes)", SMALL, ink=QUIET_INK))
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
        body.append(text(LEFT - 5, y + SMALL * 0.36, f"{tick:g}", SMALL, "end", QUIET_INK))
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
    """Where a height changes, and to what."""
    changes = np.flatnonzero(np.append(True, np.diff(heights) != 0))
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
    body, left = [], LEFT
    for name in names:
        swatch = box(left, baseline - 6.5, left + SWATCH, baseline + 1.5)
        body.append(filled([swatch], colours[name]))
        body.append(text(left + SWATCH + 3, baseline, name, SMALL))
        left += SWATCH + 12 + text_width(name, SMALL)
    for mark in marks:
        body.append(stroked([f"M{number(left)} {number(baseline - 2.5)}h14"], LIMIT, 0.8))
        body.append(text(left + 18, baseline, f"a device's {mark:.4g} GB", SMALL))
    return body

"""A timeline as text for a terminal: one line for each row, to scale.

Where all times are whole numbers of one unit and the width allows, every unit
is the same number of characters, so that the grid is exact and reads like the
ones drawn by hand. A forward pass is its micro-batch, a backward pass has
brackets around it, and a task too short for its label is a mark for each
character that it takes, another for odd micro-batches than for even ones. Two
ranks, three micro-batches, GPipe:

    rank 0  compute | 0 1 2             [0 ][1 ][2 ]
    rank 1  compute |   0 1 2 [0 ][1 ][2 ]
                      0   2   4   6   8   10  12 s
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bfpp.schedules import Operation, Task, TaskGraph
from bfpp.schedules.columns import Integers, Seconds
from bfpp.schedules.operations.row import Scope
from bfpp.schedules.operations.streams import STREAMS, Stream
from bfpp.traces.explain.looks import LOOKS
from bfpp.traces.figures.appearance import LaneRow, drawn_operations, drawn_rows, fill, ink
from bfpp.traces.figures.time_axis import time_axis
from bfpp.traces.timeline.labels import label
from bfpp.traces.timeline.timeline import Timeline

BAR = " | "
LEAST_COLUMNS = 10
COLUMNS_BETWEEN_TICKS = 8
UNBROKEN = "\N{NO-BREAK SPACE}"
MOST_UNITS_IN_SHORTEST = 12
SAME = 1e-6
"""Times that lie apart by less than this share of a unit are taken for equal."""


@dataclass(frozen=True)
class Scale:
    """Characters for times: `columns` of them for `seconds`."""

    origin: float
    seconds: float
    columns: int

    def column(self, seconds: Seconds) -> Integers:
        """The character at which each time falls."""
        share = (seconds - self.origin) / self.seconds
        return np.rint(share * self.columns).astype(np.int32)


def text(
    timeline: Timeline,
    width: int = 100,
    colour: bool = False,
    streams: Collection[Stream] = STREAMS,
) -> str:
    """The timeline in lines of at most `width` characters, with an axis and a key below.

    With `colour`, tasks have the colours of the figures, as Rich's markup around
    the same characters (`rich.text.Text.from_markup` reads it, and a console
    fits the colours to its terminal). The grid has at least 10 characters
    in addition to the names of the rows, however narrow the width.

    >>> import bfpp
    >>> timeline = bfpp.predict(bfpp.Experiment("gpipe", pp=2, microbatches=2)).timeline
    >>> print(bfpp.text(timeline, width=46).splitlines()[0])
    rank 0  compute | 0 1       [0 ][1 ]
    """
    drawn = drawn_rows(timeline, streams)
    if not drawn:
        return "no task takes any time\n"
    titles = [f"rank {row.rank}  {row.title}" for row in drawn]
    margin = max(map(len, titles)) + len(BAR)
    available = max(width - margin, LEAST_COLUMNS)
    scale = _scale(timeline, drawn, available)
    lines = [
        f"{title:{margin - len(BAR)}}{BAR}" + _line(timeline, row, scale, colour)
        for title, row in zip(titles, drawn, strict=True)
    ]
    is_crowded = any(_is_crowded(timeline, row, scale) for row in drawn)
    key = _key(timeline.graph, drawn, available, is_crowded)
    below = [_axis(scale, available), *key]
    lines += [" " * margin + line for line in below]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _scale(timeline: Timeline, drawn: Sequence[LaneRow], available: int) -> Scale:
    """The scale: whole characters a unit of time if there is a unit and room, else all that fit."""
    origin, seconds = float(timeline.start.min()), timeline.step_time
    units = _units(timeline, drawn)
    if not 0 < units <= available:
        return Scale(origin, seconds, available)
    wanted = max(_characters_for_unit(timeline, row, seconds / units) for row in drawn)
    return Scale(origin, seconds, units * min(wanted, available // units))


def _units(timeline: Timeline, drawn: Sequence[LaneRow]) -> int:
    """The step in multiples of the longest unit that divides all times; 0 if there is none."""
    tasks = np.concatenate([row.tasks for row in drawn])
    times = np.sort(np.concatenate([timeline.start[tasks], timeline.end[tasks]]))
    times -= timeline.start.min()
    steps = np.diff(times, prepend=0.0)
    shortest = float(
        steps[steps > timeline.step_time * SAME * SAME].min(initial=timeline.step_time)
    )
    for parts in range(1, MOST_UNITS_IN_SHORTEST + 1):
        units = round(timeline.step_time / shortest * parts)
        in_units = times * (units / timeline.step_time)
        if (np.abs(in_units - np.rint(in_units)) < SAME).all():
            return units
    return 0


def _characters_for_unit(timeline: Timeline, row: LaneRow, unit: float) -> int:
    """Characters for a unit such that every label of the row fits."""
    needed = 1
    durations = timeline.duration[row.tasks].tolist()
    for number, duration in zip(row.tasks.tolist(), durations, strict=True):
        task = timeline.graph.task(number)
        mark, name = LOOKS[task.operation].mark, label(task)
        characters = len(mark.before) + len(name) + len(mark.after) if name else 1
        needed = max(needed, -(-characters // max(round(duration / unit), 1)))
    return needed


def _line(timeline: Timeline, row: LaneRow, scale: Scale, colour: bool) -> str:
    """The tasks of a row, and blanks between them."""
    pieces, reached = [], 0
    for number, first, last in _spans(timeline, row, scale):
        task = timeline.graph.task(number)
        cell = _cell(task, last - first)
        pieces.append(" " * (first - reached))
        pieces.append(_coloured(cell, _fill(timeline, task)) if colour else cell)
        reached = last
    return "".join(pieces)


def _spans(timeline: Timeline, row: LaneRow, scale: Scale) -> Iterator[tuple[int, int, int]]:
    """Each task with its first character and the one after its last.

    A task too short for one gets it all the same if nothing else needs it.
    """
    starts = scale.column(timeline.start[row.tasks]).tolist()
    ends = scale.column(timeline.end[row.tasks]).tolist()
    reached = 0
    for number, start, end, following in zip(
        row.tasks.tolist(), starts, ends, [*starts[1:], scale.columns], strict=True
    ):
        first = max(min(start, scale.columns - 1), reached)
        last = max(end, min(first + 1, following))
        if last > first:
            yield number, first, last
            reached = last


def _cell(task: Task, characters: int) -> str:
    """A task in this many `characters`, with its label if that fits."""
    mark, name = LOOKS[task.operation].mark, label(task)
    room = characters - len(mark.before) - len(mark.after)
    if name and len(name) <= room:
        return mark.before + name.ljust(room, mark.padding) + mark.after
    if len(name) == characters == 1 and not mark.before:
        return name
    in_place = mark.unlabelled[task.microbatch % len(mark.unlabelled)]
    return (name if len(name) < characters else "").ljust(characters, in_place)


def _is_crowded(timeline: Timeline, row: LaneRow, scale: Scale) -> bool:
    """True where some micro-batch of a row has no room for its number."""
    return any(
        label(task) and label(task) not in _cell(task, last - first)
        for number, first, last in _spans(timeline, row, scale)
        for task in (timeline.graph.task(number),)
    )


def _key(graph: TaskGraph, drawn: Sequence[LaneRow], available: int, is_crowded: bool) -> list[str]:
    """The meaning of each mark, in lines that break between two marks."""
    operations = drawn_operations(graph, drawn)
    marks = [_explained(each, each.called(graph.communication)) for each in operations]
    if is_crowded:
        marks += [
            f"{' '.join(mark)} {operation.title}, no room"
            for operation in operations
            if len(mark := LOOKS[operation].mark.unlabelled) > 1
        ]
    explained = (each.replace(" ", UNBROKEN) for each in marks)
    lines = textwrap.wrap("   ".join(explained), available, break_long_words=False)
    return [line.replace(UNBROKEN, " ") for line in lines]


def _explained(operation: Operation, name: str) -> str:
    mark = LOOKS[operation].mark
    scope = operation.row.scope
    sample = mark.unlabelled if scope is Scope.RANK else f"{mark.before}0{mark.after}".strip()
    return f"{sample} {name}" + (" of stage 0" if scope is Scope.UNIT else "")


def _axis(scale: Scale, available: int) -> str:
    """Round times, each starting below the character at which it falls."""
    axis = time_axis(scale.seconds, max(scale.columns // COLUMNS_BETWEEN_TICKS, 1))
    columns = scale.column(np.array(axis.tick_seconds) + scale.origin).tolist()
    unit, line = f" {axis.unit}", ""
    for column, tick in zip(columns, axis.tick_labels, strict=True):
        if column + len(tick) + len(unit) <= available:
            line = line.ljust(column) + tick
    return line + unit


def _fill(timeline: Timeline, task: Task) -> str:
    return fill(task.operation, task.microbatch, timeline.graph.layout.microbatches)


def _coloured(cell: str, background: str) -> str:
    """The cell in its colours as Rich markup; no cell looks like a tag itself."""
    return f"[{ink(background)} on {background}]{cell}[/]"

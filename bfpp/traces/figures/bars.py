"""The bars of one row of a figure, in the figure's own units.

Passes of one micro-batch through neighbouring stages are one bar with a seam
where one stage ends, as the paper draws a rank's layers. Bars thinner than
`FINEST` are drawn together, a cell at a time, in their average colour
weighted by time (idle time counts too), which is what the eye would make of
them: so a row never has many more bars than the figure has cells, however many
tasks there are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import NONE, Flags, Integers
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.schedules.operations.row import Scope
from bfpp.traces.figures.appearance import IDLE, LaneRow, fill
from bfpp.traces.timeline.labels import label, labelled_by
from bfpp.traces.timeline.timeline import Timeline

FINEST = 1.0
TOUCHING = 0.02
SHADE = 8
"""Mean colours are rounded to multiples of this, so that many bars share one."""

Positions = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


class Bar(NamedTuple):
    """A coloured stretch of a row, its label (or none), and the seams inside it.

    The label `counts` micro-batches or units. `joined` to the bar before it if the two are one
    block.
    """

    left: float
    right: float
    colour: str
    label: str
    seams: tuple[float, ...]
    joined: bool
    counts: Scope


def bars(timeline: Timeline, row: LaneRow, scale: float) -> list[Bar]:
    """The bars of a row, from left to right; `scale` is units per second."""
    origin = timeline.start.min()
    left = (timeline.start[row.tasks] - origin) * scale
    right = (timeline.end[row.tasks] - origin) * scale
    first, after = _stretches(_begins_pass(timeline, row.tasks, left, right))
    begins_cell = _begins_cell(left[first], right[after - 1])
    colours = _colours(timeline, row.tasks)
    block = timeline.graph.block[row.tasks]
    is_second = (block != NONE) & (block != row.tasks)
    drawn = []
    for start, end in zip(*_stretches(begins_cell), strict=True):
        one, inside = end == start + 1, slice(first[start], after[end - 1])
        task = timeline.graph.task(int(row.tasks[inside.start]))
        name, counts = label(task) if one else "", labelled_by(task)
        seams = tuple(left[inside][1:].tolist()) if one else ()
        colour = (
            colours[inside.start] if one else _mean(left[inside], right[inside], colours[inside])
        )
        drawn.append(
            Bar(
                left=float(left[inside][0]),
                right=float(right[inside].max()),
                colour="#" + bytes(colour.tolist()).hex(),
                label=name,
                seams=seams,
                joined=one and bool(is_second[inside.start]),
                counts=counts,
            )
        )
    return drawn


def _stretches(begins: Flags) -> tuple[Indices, Indices]:
    """The first index of each stretch, and the index after its last."""
    first = np.flatnonzero(begins)
    return first, np.append(first[1:], len(begins))


def _begins_pass(timeline: Timeline, tasks: Integers, left: Positions, right: Positions) -> Flags:
    """True for tasks that do not continue the micro-batch of the task that they touch."""
    graph = timeline.graph
    before, here = tasks[:-1], tasks[1:]
    carries_on = (left[1:] - right[:-1] < TOUCHING) & graph.is_compute[here]
    carries_on &= graph.operation[before] == graph.operation[here]
    carries_on &= graph.microbatch[before] == graph.microbatch[here]
    return np.append(True, ~carries_on)


def _begins_cell(left: Positions, right: Positions) -> Flags:
    """True for passes wide enough to be seen, or in another cell than the one before."""
    narrow = right - left < FINEST
    cell = np.floor((left + right) / (2 * FINEST))
    return np.append(True, ~(narrow[1:] & narrow[:-1] & (cell[1:] == cell[:-1])))


def _colours(timeline: Timeline, tasks: Integers) -> Integers:
    """The colour of each task, as red, green and blue: (tasks, 3)."""
    graph = timeline.graph
    kinds = np.stack([graph.operation[tasks], graph.microbatch[tasks]])
    distinct, which = np.unique(kinds, axis=1, return_inverse=True)
    fills = [
        fill(OPERATIONS[operation], microbatch, graph.layout.microbatches)
        for operation, microbatch in distinct.T.tolist()
    ]
    return np.array([_channels(colour) for colour in fills], dtype=np.int32)[which.ravel()]


def _mean(left: Positions, right: Positions, colours: Integers) -> Integers:
    """The colour of tasks drawn together: the mean over their time and the time between."""
    span = (right.max() - left[0]) or 1.0
    share = (right - left) / span
    idle = max(1 - share.sum(), 0)
    mean = share @ colours + idle * np.array(_channels(IDLE))
    rounded: Integers = np.clip(np.rint(mean / SHADE) * SHADE, 0, 255).astype(np.int32)
    return rounded


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))

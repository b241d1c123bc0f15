"""How tasks look in every figure: rows, colours and labels.

Forward passes are blue and backward passes orange, lighter for later
micro-batches; both keep apart for colour-blind readers. A compute step or a
transfer is labelled with its micro-batch, a gather or a reduction with its
stage, as in the paper's figures.
"""

from __future__ import annotations

import colorsys
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from bfpp.schedules import Operation, Task, TaskGraph
from bfpp.schedules.columns import NONE, Integers
from bfpp.schedules.operations import COMPUTE, DATA, OPERATIONS, REPLICAS, STREAMS, Stream
from bfpp.traces.operations import TRACED
from bfpp.traces.timeline import Timeline

DARK_INK, LIGHT_INK = "#16202c", "#ffffff"
QUIET_INK = "#5b6673"
IDLE = "#eef0f3"


def fill(operation: Operation, microbatch: int = 0, microbatches: int = 1) -> str:
    """The colour of a task, as `#rrggbb`."""
    tone = TRACED[operation].tone
    share = max(microbatch, 0) / max(microbatches - 1, 1)
    lightness = tone.darkest + (tone.lightest - tone.darkest) * share
    channels = colorsys.hls_to_rgb(tone.hue / 360, lightness, tone.saturation)
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in channels)


def ink(background: str) -> str:
    """The text colour that reads best on a `#rrggbb` background."""
    red, green, blue = (int(background[at : at + 2], 16) for at in (1, 3, 5))
    return DARK_INK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else LIGHT_INK


def label(task: Task) -> str:
    """The few characters drawn on a task."""
    number = task.unit if task.microbatch == NONE else task.microbatch
    return "" if number == NONE else str(number)


class Row(NamedTuple):
    """One line of a figure: a lane, and its tasks in order."""

    rank: int
    stream: Stream
    title: str
    tasks: Integers


COMPUTE_AND_DATA = (COMPUTE, DATA, REPLICAS)


def rows(graph: TaskGraph, streams: Collection[Stream] = STREAMS) -> list[Row]:
    """The rows of a figure, rank by rank, compute first; empty lanes left out."""
    return [
        Row(lane.rank, lane.stream, lane.title, graph.lane_tasks.of(number))
        for number, lane in enumerate(graph.lanes)
        if lane.stream in streams
    ]


def drawn_rows(timeline: Timeline, streams: Collection[Stream] = STREAMS) -> list[Row]:
    """The rows that have something to draw: tasks that take time, and no row without any.

    In the order of their starts, from which measured tasks of a lane may differ
    by the error of a clock.
    """
    drawn = []
    for row in rows(timeline.graph, streams):
        tasks = row.tasks[timeline.duration[row.tasks] > 0]
        if len(tasks):
            drawn.append(row._replace(tasks=timeline.by_start(tasks)))
    return drawn


def drawn_operations(graph: TaskGraph, drawn: Sequence[Row]) -> list[Operation]:
    """The operations of the rows' tasks: what a legend has to explain."""
    seen: set[int] = set()
    for row in drawn:
        seen.update(np.unique(graph.operation[row.tasks]).tolist())
    return [OPERATIONS[operation] for operation in sorted(seen)]

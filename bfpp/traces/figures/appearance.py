"""Appearance of tasks in every figure: rows, colours and inks.

Forward passes are blue and backward passes orange, lighter for later
micro-batches; both keep apart for colour-blind readers. A compute step or a
transfer is labelled with its micro-batch, a gather or a reduction with its
stage, as in the paper's figures.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from bfpp.schedules import Operation, TaskGraph
from bfpp.schedules.columns import Integers
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.schedules.operations.streams import (
    COMPUTE,
    DATA,
    EXPERTS,
    FROM_HOST,
    REPLICAS,
    STREAMS,
    TIED,
    TO_HOST,
    Stream,
)
from bfpp.traces.explain.looks import LOOKS
from bfpp.traces.timeline.timeline import Timeline

DARK_INK = "#16202c"
ON_DARK, ON_LIGHT = "#ffffff", "#000000"
QUIET_INK = "#5b6673"
IDLE = "#eef0f3"


def fill(operation: Operation, microbatch: int = 0, microbatches: int = 1) -> str:
    """The colour of a task, as `#rrggbb`."""
    tone = LOOKS[operation].tone
    share = max(microbatch, 0) / max(microbatches - 1, 1)
    lightness = tone.darkest + (tone.lightest - tone.darkest) * share
    channels = colorsys.hls_to_rgb(tone.hue / 360, lightness, tone.saturation)
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in channels)


def ink(background: str) -> str:
    """The text colour that reads better on a `#rrggbb` background: one does, by WCAG's 4.5 to 1."""
    return ON_DARK if luminance(background) + 0.05 < math.sqrt(1.05 * 0.05) else ON_LIGHT


def luminance(colour: str) -> float:
    """WCAG's relative luminance of a `#rrggbb` colour, from 0 to 1."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


class LaneRow(NamedTuple):
    """One line of a figure: a lane, and its tasks in order."""

    rank: int
    stream: Stream
    title: str
    tasks: Integers


COMPUTE_AND_DATA = (COMPUTE, DATA, REPLICAS, TIED, EXPERTS, TO_HOST, FROM_HOST)
"""Compute, collectives and host copies: all but the transfers between stages."""


def rows(graph: TaskGraph, streams: Collection[Stream] = STREAMS) -> list[LaneRow]:
    """The rows of a figure, rank by rank, compute first; empty lanes left out."""
    return [
        LaneRow(lane.rank, lane.stream, lane.title, graph.lane_tasks.of(number))
        for number, lane in enumerate(graph.lanes)
        if lane.stream in streams
    ]


def drawn_rows(timeline: Timeline, streams: Collection[Stream] = STREAMS) -> list[LaneRow]:
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


def drawn_operations(graph: TaskGraph, drawn: Sequence[LaneRow]) -> list[Operation]:
    """The operations of the rows' tasks, for the legend."""
    seen: set[int] = set()
    for row in drawn:
        seen.update(np.unique(graph.operation[row.tasks]).tolist())
    return [OPERATIONS[operation] for operation in sorted(seen)]

"""What a page knows of a timeline: columns of its tasks, its colours, its numbers and causes.

Columns travel as the narrowest type that holds them, deflated, in base64. Tasks that take no
time are not drawn, but can be named as dependencies.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from typing import Any

import numpy as np
import numpy.typing as npt

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import Flags
from bfpp.schedules.operations import COMPUTE, OPERATIONS
from bfpp.traces.appearance import COMPUTE_AND_DATA, fill, ink
from bfpp.traces.causes import Wait
from bfpp.traces.memory import MemoryCurve
from bfpp.traces.operations import TRACED
from bfpp.traces.panel import Panel
from bfpp.traces.timeline import Timeline

MOST_SHADES = 48
"""Colours of one operation: more micro-batches than this share them."""

MOST_MOMENTS = 400
"""Moments of a rank's memory that a page has."""

SMALLEST_FIRST = (np.int8, np.int16, np.int32)
TYPED_ARRAYS = {
    "i1": "Int8Array",
    "i2": "Int16Array",
    "i4": "Int32Array",
    "f8": "Float64Array",
}


def panel_data(panel: Panel) -> dict[str, Any]:
    """A panel as the page's scripts read it."""
    graph, timeline = panel.timeline.graph, panel.timeline
    colours = _Colours(graph)
    return {
        "title": panel.title,
        "subtitle": panel.subtitle,
        "summary": panel.summary,
        "graph": graph.digest,
        "ranks": graph.layout.pp,
        "lanes": _lanes(graph),
        "operations": [each.called(graph.communication) for each in OPERATIONS],
        "colours": colours.fills,
        "inks": [ink(colour) for colour in colours.fills],
        "legend": colours.legend(timeline.duration > 0),
        "waits": [_wait(wait, timeline.first_start) for wait in panel.waits],
        "criticalPath": list(panel.critical_path),
        "causes": [[name, seconds] for name, seconds in panel.causes],
        "memory": [_curve(curve.thinned(MOST_MOMENTS)) for curve in panel.memory],
        "memoryUnit": panel.memory_unit,
        "columns": {name: packed(values) for name, values in _columns(timeline, colours).items()},
    }


def _wait(wait: Wait, first_start: float) -> dict[str, Any]:
    """An idle stretch; its times count from the step's first start."""
    return {
        "rank": wait.rank,
        "begin": wait.begin - first_start,
        "end": wait.end - first_start,
        "task": wait.task,
        "blocker": wait.blocker,
        "gain": wait.gain,
        "causes": [[str(cause), seconds] for cause, seconds in wait.seconds.items()],
    }


def _lanes(graph: TaskGraph) -> list[dict[str, Any]]:
    return [
        {
            "rank": lane.rank,
            "title": lane.title,
            "size": "compute" if lane.stream is COMPUTE else
                    "data" if lane.stream in COMPUTE_AND_DATA else "channel",
        }
        for lane in graph.lanes
    ]  # fmt: skip


def _columns(timeline: Timeline, colours: _Colours) -> dict[str, npt.NDArray[Any]]:
    """What the page knows of each task; its moments count from the step's first start.

    `dependency` holds, task by task, how many numbers back each dependency is,
    and `dependencies` how many of them a task has.
    """
    graph = timeline.graph
    origin, counts = timeline.first_start, np.diff(graph.dependencies.start)
    numbers = np.repeat(np.arange(len(graph), dtype=np.int32), counts)
    return {
        "start": timeline.start - origin,
        "duration": timeline.duration,
        "operation": graph.operation,
        "stage": graph.stage,
        "unit": graph.unit,
        "microbatch": graph.microbatch,
        "lane": graph.lane,
        "peerLane": graph.peer_lane,
        "colour": colours.of_tasks(),
        "dependencies": counts,
        "dependency": numbers - graph.dependencies.member,
        **({} if timeline.posted is None else {"posted": timeline.posted - origin}),
        **({} if timeline.ready is None else {"ready": timeline.ready - origin}),
    }


def _curve(curve: MemoryCurve) -> dict[str, Any]:
    parts = {name: packed(values) for name, values in curve.parts.items()}
    return {"rank": curve.rank, "time": packed(curve.time), "parts": parts}


def packed(values: npt.NDArray[Any]) -> dict[str, str]:
    """A column for the page: its JavaScript type, and its bytes deflated and in base64.

    Raises `ValueError` where a value is not finite.
    """
    if not np.isfinite(values).all():
        raise ValueError("every task of a drawn timeline needs a finite start and end")
    narrow = _narrowed(values)
    little_endian = narrow.astype(narrow.dtype.newbyteorder("<"), copy=False)
    data = b64encode(zlib.compress(little_endian.tobytes(), level=1)).decode()
    return {"type": TYPED_ARRAYS[narrow.dtype.str[1:]], "data": data}


def _narrowed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same numbers, integers in the narrowest type that holds them all."""
    if values.dtype.kind == "f" or not len(values):
        return values.astype(np.float64)
    least, most = int(values.min()), int(values.max())
    for dtype in SMALLEST_FIRST:
        if np.iinfo(dtype).min <= least and most <= np.iinfo(dtype).max:
            return values.astype(dtype)
    raise ValueError(f"{most} does not fit into 32 bits")


class _Colours:
    """The colours of a panel: for each of its operations, a shade for each micro-batch."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.present = np.unique(graph.operation).tolist()
        microbatches = graph.layout.microbatches
        self.shades = {
            operation: min(microbatches, MOST_SHADES) if _is_shaded(operation) else 1
            for operation in self.present
        }
        self.fills = [
            fill(OPERATIONS[operation], shade, shades)
            for operation, shades in self.shades.items()
            for shade in range(shades)
        ]

    def of_tasks(self) -> npt.NDArray[np.int16]:
        """For each task, the number of its colour."""
        graph = self.graph
        first, shades = np.zeros((2, len(OPERATIONS)), dtype=np.int32)
        shades[self.present] = list(self.shades.values())
        first[self.present] = np.cumsum(shades[self.present]) - shades[self.present]
        steps = shades[graph.operation] - 1
        last = max(graph.layout.microbatches - 1, 1)
        shade = (2 * np.maximum(graph.microbatch, 0) * steps + last) // (2 * last)
        return (first[graph.operation] + shade).astype(np.int16)

    def legend(self, drawn: Flags) -> list[dict[str, Any]]:
        """The operations that are drawn, with their first and last colour."""
        operations = np.unique(self.graph.operation[drawn]).tolist()
        return [
            {
                "operation": operation,
                "from": fill(OPERATIONS[operation]),
                "to": fill(OPERATIONS[operation], 1, 2 if self.shades[operation] > 1 else 1),
            }
            for operation in operations
        ]


def _is_shaded(operation: int) -> bool:
    tone = TRACED[OPERATIONS[operation]].tone
    return tone.darkest != tone.lightest

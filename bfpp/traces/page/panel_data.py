"""Data of the interactive page: columns of tasks and times, colours, waits, causes and memory.

Theory of operation

Python packs, the page draws. A panel travels in two parts: `graph_data` follows from the task
graph alone, `timeline_data` from the times, so that one graph can come with several timelines. The
page (`data.js`) unpacks both, sorts tasks into rows and mixes colours for what is narrower than
a pixel.

- A column is an array of numbers for all tasks, never an object for each. Integers travel as the
  narrowest type that holds them all; dependencies as distances back from their task.
- All columns of a table are deflated together and travel as base64. The widest come first, so that
  each begins at a multiple of its width, as JavaScript's typed arrays require.
- Times count from the step's first start. A task that takes no time is not drawn, but can be named
  as a dependency.
- Colours are an index into a table: at most `MOST_SHADES` of an operation, whatever the number of
  micro-batches. Memory curves are thinned to `MOST_MOMENTS`.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.schedules.operations.streams import COMPUTE
from bfpp.traces.explain.causes import Wait
from bfpp.traces.explain.looks import LOOKS, Cause
from bfpp.traces.figures.appearance import COMPUTE_AND_DATA, fill, ink
from bfpp.traces.figures.panel import Panel
from bfpp.traces.timeline.memory_curves import MemoryCurve
from bfpp.traces.timeline.timeline import Timeline

MOST_SHADES = 48
"""Colours of one operation: more micro-batches than this share them."""

MOST_MOMENTS = 400
"""The most points of a rank's memory curve on a page."""

Columns = Mapping[str, npt.NDArray[Any]]

MOST_BYTES = 4
"""Of an integer: JavaScript has typed arrays of plain numbers up to this width."""

TYPED_ARRAYS = {
    "i1": "Int8Array",
    "i2": "Int16Array",
    "i4": "Int32Array",
    "f4": "Float32Array",
    "f8": "Float64Array",
}


def panel_data(panel: Panel) -> dict[str, Any]:
    """A panel as the page's scripts read it."""
    return graph_data(panel.timeline.graph) | timeline_data(panel)


def graph_data(graph: TaskGraph) -> dict[str, Any]:
    """The part of a panel that follows from its graph: the same whatever tasks cost."""
    colours = _Colours(graph)
    return {
        "graph": graph.digest,
        "ranks": graph.layout.pp,
        "lanes": _lanes(graph),
        "operations": [each.called(graph.communication) for each in OPERATIONS],
        "colours": colours.fills,
        "inks": [ink(colour) for colour in colours.fills],
        "legend": colours.legend,
        "causeNames": list(Cause),
        "columns": packed({**_columns(graph), "colour": colours.of_tasks()}),
    }


def timeline_data(panel: Panel) -> dict[str, Any]:
    """The rest of a panel: titles, times, waits, causes and memory."""
    return {
        "title": panel.title,
        "subtitle": panel.subtitle,
        "headline": panel.headline,
        "fallsShort": panel.falls_short,
        "summary": panel.summary,
        "times": packed(_times(panel.timeline)),
        "waits": packed(_waits(panel.waits, panel.timeline.first_start)),
        "criticalPath": list(panel.critical_path),
        "causes": [[name, seconds] for name, seconds in panel.causes],
        "memory": _memory([curve.thinned(MOST_MOMENTS) for curve in panel.memory]),
        "memoryUnit": panel.memory_unit,
    }


def _times(timeline: Timeline) -> Columns:
    """Starts and durations of tasks, in seconds from the step's first start."""
    origin = timeline.first_start
    columns = {"start": timeline.start - origin, "duration": timeline.duration}
    if timeline.posted is not None:
        columns["posted"] = timeline.posted - origin
    if timeline.ready is not None:
        columns["ready"] = timeline.ready - origin
    return columns


def _columns(graph: TaskGraph) -> Columns:
    """The columns of a graph's tasks, and their dependencies.

    `dependencies` has the number of dependencies of each task, `dependency`, task by task, the
    distance back to each: task number less dependency.
    """
    return {
        "operation": graph.operation,
        "stage": graph.stage,
        "unit": graph.unit,
        "microbatch": graph.microbatch,
        "lane": graph.lane,
        "peerLane": graph.peer_lane,
        "dependencies": np.diff(graph.dependencies.start),
        "dependency": graph.dependent - graph.dependencies.member,
    }


def _waits(waits: Sequence[Wait], first_start: float) -> Columns:
    """Idle stretches: `causes` is the number of causes of each, a gain that is not known `NONE`."""
    code = {cause: number for number, cause in enumerate(Cause)}
    causes = [(code[cause], seconds) for wait in waits for cause, seconds in wait.seconds.items()]
    cause, seconds = zip(*causes, strict=True) if causes else ((), ())
    return {
        "rank": np.array([wait.rank for wait in waits]),
        "begin": np.array([wait.begin - first_start for wait in waits]),
        "end": np.array([wait.end - first_start for wait in waits]),
        "task": np.array([wait.task for wait in waits]),
        "blocker": np.array([wait.blocker for wait in waits]),
        "gain": np.array([NONE if wait.gain is None else wait.gain for wait in waits], float),
        "causes": np.array([len(wait.seconds) for wait in waits]),
        "cause": np.array(cause),
        "seconds": np.array(seconds),
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


def _memory(curves: Sequence[MemoryCurve]) -> dict[str, Any] | None:
    """The curves of all ranks, one after the other."""
    if not curves:
        return None
    parts = {
        name: np.concatenate([curve.parts[name] for curve in curves]).astype(np.float32)
        for name in curves[0].parts
    }
    return {
        "ranks": [curve.rank for curve in curves],
        "moments": [len(curve.time) for curve in curves],
        "time": packed({"time": np.concatenate([curve.time for curve in curves])}),
        "parts": packed(parts),
    }


def packed(columns: Columns) -> dict[str, Any]:
    """Columns for the page: their names, JavaScript types and lengths, and their bytes in a row.

    Raises `ValueError` where a value is not finite.
    """
    narrow = [(name, _narrowed(values)) for name, values in columns.items()]
    narrow.sort(key=lambda column: -column[1].itemsize)
    data = b"".join(
        values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes() for _, values in narrow
    )
    return {
        "columns": [
            (name, TYPED_ARRAYS[values.dtype.str[1:]], len(values)) for name, values in narrow
        ],
        "data": b64encode(zlib.compress(data, level=1)).decode(),
    }


def _narrowed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The numbers of a column, integers in the narrowest type that holds them all."""
    if not np.isfinite(values).all():
        raise ValueError("every task of a drawn timeline needs a finite start and end")
    if values.dtype.kind == "f":
        return values
    least, most = int(values.min(initial=0)), int(values.max(initial=0))
    narrowest = np.min_scalar_type(min(least, ~most))  # signed: of a negative number
    if narrowest.itemsize > MOST_BYTES:
        raise ValueError(f"{most} does not fit into 32 bits")
    return values.astype(narrowest)


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

    @property
    def legend(self) -> list[dict[str, Any]]:
        """The operations of the graph, with their first and last colour."""
        return [
            {
                "operation": operation,
                "from": fill(OPERATIONS[operation]),
                "to": fill(OPERATIONS[operation], shades - 1, shades),
            }
            for operation, shades in self.shades.items()
        ]


def _is_shaded(operation: int) -> bool:
    tone = LOOKS[OPERATIONS[operation]].tone
    return tone.darkest != tone.lightest

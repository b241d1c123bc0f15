"""A timeline as a Chrome trace, which Perfetto opens: https://ui.perfetto.dev.

One process for each rank, one thread for each lane, one slice for each task on
each of its lanes, and an arrow from every send to its receive.

Rules that keep a trace processor from losing slices silently:

- Times are rounded once, to whole nanoseconds, the finest it keeps; and no
  slice starts before the one ahead of it on its thread has ended. (Measured
  times may overlap by a clock's error; partly overlapping slices are dropped.)
- Process and thread numbers start above 0, which stands for the idle process,
  and no thread has the number of a process, which would make it a main thread.
- Times count from the start of the step: its clock may be at any hour, and a
  double of microseconds since 1970 has no nanoseconds left.
- A task that takes no time is a slice of length 0. It may be drawn below the
  slice that starts at that instant, and a search still lists it, unless there
  are more than 512 such tasks at one instant on one lane.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from bfpp.schedules import InvalidInput
from bfpp.schedules.columns import NONE, Integers, Offsets, Seconds
from bfpp.schedules.formats.graph_json import graph_record
from bfpp.traces.formats.text_files import written
from bfpp.traces.timeline.labels import task_name
from bfpp.traces.timeline.timeline import Timeline
from bfpp.traces.timeline.units import MICROSECONDS_PER_SECOND, NANOSECONDS_PER_SECOND

Event = dict[str, object]

GRAPH = "taskGraph"
"""The key of the whole graph, next to the events, by which a trace is read back."""

LONGEST = 2.0**63 / NANOSECONDS_PER_SECOND / 2
"""The longest step in seconds: 146 years, and room to shift its tasks."""
NANOSECONDS_PER_MICROSECOND = 1e3
LEAVES: Event = {"ph": "s"}
ARRIVES: Event = {"ph": "f", "bp": "e"}
"""The ends of an arrow, each tied to the slice around it."""


def write_perfetto(timeline: Timeline, path: Path | str) -> None:
    """Write the trace, compressed where the name ends in `.gz`.

    Raises `InvalidInput` for a step of more than 146 years.

    >>> import bfpp, tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".json") as file:
    ...     bfpp.write_perfetto(bfpp.predict(bfpp.Experiment("gpipe", pp=2)).timeline, file.name)
    """
    _require_room(timeline)
    with written(path) as file:
        _write(timeline, file)


def _write(timeline: Timeline, file: TextIO) -> None:
    """One event a line; events are made as they are written."""
    about = {
        "generator": "bfpp",
        **timeline.about,
        "schedule": timeline.graph.schedule,
        "source": timeline.source,
    }
    file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [\n')
    separator = ""
    for event in events(timeline):
        file.write(separator + json.dumps(event))
        separator = ",\n"
    file.write(f'\n], "{GRAPH}": {json.dumps(graph_record(timeline.graph))}}}\n')


def events(timeline: Timeline) -> Iterator[Event]:
    """The trace's events: names of processes and threads, then task by task the slices.

    In the order of tasks, because events of one instant are read in the order
    of the file: each arrow leaves before it arrives, and both its ends attach to the
    slice that was written just before them, although it may last no time.
    """
    yield from _names(timeline)
    graph = timeline.graph
    sent, received = _lane_times(timeline)
    for number in range(len(graph)):
        yield from _on_lane(timeline, number, int(graph.lane[number]), sent[:, number])
        if graph.peer_lane[number] != NONE:
            yield from _on_lane(timeline, number, int(graph.peer_lane[number]), received[:, number])


def _require_room(timeline: Timeline) -> None:
    if timeline.step_time > LONGEST:
        raise InvalidInput(f"a trace in nanoseconds has no room for {timeline.step_time:.3g} s")


def _names(timeline: Timeline) -> Iterator[Event]:
    graph = timeline.graph
    for rank in range(graph.layout.pp):
        process: Event = {"ph": "M", "pid": rank + 1}
        yield process | {"name": "process_name", "args": {"name": f"rank {rank}"}}
        yield process | {"name": "process_sort_index", "args": {"sort_index": rank}}
    for number, lane in enumerate(graph.lanes):
        thread = {"ph": "M"} | _thread(timeline, number)
        yield thread | {"name": "thread_name", "args": {"name": lane.title}}
        yield thread | {"name": "thread_sort_index", "args": {"sort_index": number}}


def _thread(timeline: Timeline, lane: int) -> Event:
    graph = timeline.graph
    return {"pid": graph.lanes[lane].rank + 1, "tid": graph.layout.pp + 1 + lane}


def _on_lane(timeline: Timeline, number: int, lane: int, times: Offsets) -> Iterator[Event]:
    """A task's slice on one of its lanes and, for a transfer, that end of its arrow."""
    graph = timeline.graph
    start, end = times.tolist()
    moment = _thread(timeline, lane) | {"ts": start / NANOSECONDS_PER_MICROSECOND}
    duration = (end - start) / NANOSECONDS_PER_MICROSECOND
    described = moment | _described(timeline, number)
    yield described | {"ph": "X", "dur": duration}
    if graph.is_transfer[number]:
        end_of_arrow = LEAVES if lane == graph.lane[number] else ARRIVES
        yield moment | {"name": "transfer", "cat": "transfer", "id": number} | end_of_arrow


def _described(timeline: Timeline, number: int) -> Event:
    task = timeline.graph.task(number)
    arguments: Event = {"task": number}
    if task.stage != NONE:
        arguments["stage"] = task.stage
    if task.unit != task.stage:
        arguments["unit"] = task.unit
    if task.microbatch != NONE:
        arguments["micro-batch"] = task.microbatch
    if task.block != NONE:
        arguments["block"] = task.block
    if task.operation.row.carries:
        arguments |= {"from rank": task.rank, "to rank": task.peer}
    elif task.peer != NONE:
        arguments["second copy on rank"] = task.peer
    for name, column in (("posted", timeline.posted), ("ready", timeline.ready)):
        if column is not None:
            seconds = column[number] - timeline.first_start
            arguments[f"{name} (us)"] = float(seconds * MICROSECONDS_PER_SECOND)
    arguments["dependencies"] = list(task.dependencies)
    return {
        "name": task_name(task),
        "cat": task.operation.title,
        "args": arguments,
    }


def _lane_times(timeline: Timeline) -> tuple[Offsets, Offsets]:
    """Starts and ends in nanoseconds, at a task's lane and at its receiver's lane: (2, tasks)."""
    graph = timeline.graph
    sent = np.zeros((2, len(graph)), dtype=np.int64)
    received = np.zeros_like(sent)
    for lane in range(len(graph.lanes)):
        tasks = timeline.lane_tasks(lane)
        times = _nanoseconds(timeline, tasks)
        here = graph.lane[tasks] == lane
        sent[:, tasks[here]] = times[:, here]
        received[:, tasks[~here]] = times[:, ~here]
    return sent, received


def _nanoseconds(timeline: Timeline, tasks: Integers) -> Offsets:
    """Starts and ends of a lane's tasks since the start of the step, never overlapping."""
    origin = timeline.start.min()
    end = np.maximum.accumulate(_rounded(timeline.end[tasks] - origin))
    start = np.maximum(_rounded(timeline.start[tasks] - origin), np.append(0, end)[:-1])
    return np.stack([start, np.maximum(end, start)])


def _rounded(seconds: Seconds) -> Offsets:
    return np.rint(seconds * NANOSECONDS_PER_SECOND).astype(np.int64)

"""Write and read timelines as JSON.

One object: `format`, `source`, `about`, `graph` (that of `bfpp.schedules.formats.graph_json`),
and a list of seconds for each task: `start`, `end`, and `posted` and `ready`
where they were measured (else null). A file is compressed if its name ends in
`.gz`, and is read either way. `memory` is that of ranks, where it is known
(`bfpp.traces.formats.memory_json`). `replicas`, where they differ, has columns of seconds for each
that differs (`times`), which of these each replica has (`of_replica`), how many `groups` they are
in (with hybrid sharding), and the replica that all else is of (`shown`). A timeline that was read
can be drawn and counted: its tasks are on lanes of their ranks, and depend only on tasks of smaller
numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.errors import InvalidFile
from bfpp.schedules.formats.graph_json import MalformedGraph, graph_record, recorded_graph
from bfpp.schedules.reading import (
    NO_TIMES,
    NotJson,
    is_execution_trace,
    not_of_format,
    parsed,
    read_file,
)
from bfpp.schedules.validity.structure import columns, numbering
from bfpp.traces.formats.memory_json import MalformedMemory, memory_record, recorded_memory
from bfpp.traces.formats.text_files import written
from bfpp.traces.timeline.timeline import About, Replicas, Timeline

FORMAT = "bfpp timeline 1"

NEEDED, MEASURED_ALONE = ("start", "end"), ("posted", "ready")
"""The columns of seconds."""

MOST_SECONDS = 1e100
"""More than any prediction; results computed from them are finite."""


class MalformedTimeline(InvalidFile):
    """A text that does not hold a timeline; the reason is one line."""


def save_timeline(timeline: Timeline, path: Path | str) -> None:
    """Write the timeline to a file, compressed where its name ends in `.gz`.

    >>> import bfpp, tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".json") as file:
    ...     bfpp.save_timeline(bfpp.predict(bfpp.Experiment("gpipe", pp=2)).timeline, file.name)
    """
    text = write_timeline(timeline)
    with written(path) as file:
        file.write(text)


def load_timeline(path: Path | str) -> Timeline:
    """The timeline of a file; raises `MalformedTimeline` with the reason, or `OSError`.

    >>> import bfpp, tempfile
    >>> timeline = bfpp.predict(bfpp.Experiment("gpipe", pp=2)).timeline
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bfpp.save_timeline(timeline, f"{folder}/step.json.gz")
    ...     bfpp.load_timeline(f"{folder}/step.json.gz").step_time == timeline.step_time
    True
    """
    return read_timeline(read_file(Path(path)))


def write_timeline(timeline: Timeline) -> str:
    """The timeline as JSON text; raises `ValueError` where a time is not finite."""
    record: dict[str, Any] = {
        "format": FORMAT,
        "source": timeline.source,
        "about": dict(timeline.about),
        "graph": graph_record(timeline.graph),
        **_columns(timeline),
    }
    if timeline.memory:
        record["memory"] = memory_record(timeline.memory)
    if timeline.replicas:
        record["replicas"] = {
            "shown": timeline.replicas.shown,
            "groups": timeline.replicas.groups,
            "of_replica": timeline.replicas.of_replica.tolist(),
            "times": [_columns(each) for each in timeline.replicas.timelines],
        }
    return json.dumps(record, allow_nan=False) + "\n"


def _columns(timeline: Timeline) -> dict[str, list[float] | None]:
    times = {name: getattr(timeline, name) for name in NEEDED + MEASURED_ALONE}
    return {name: None if each is None else each.tolist() for name, each in times.items()}


def read_timeline(text: str | bytes) -> Timeline:
    """The timeline of a JSON text, compressed or not; raises `MalformedTimeline`."""
    try:
        record = parsed(text)
    except NotJson as error:
        raise MalformedTimeline(error.reason) from None
    if (record and isinstance(record, list)) or (
        isinstance(record, dict) and "traceEvents" in record
    ):
        raise MalformedTimeline("is a trace: bfpp import makes a timeline of it")
    if is_execution_trace(record):
        raise MalformedTimeline(f"is an execution trace of PyTorch, which {NO_TIMES}")
    if fault := not_of_format(record, "a timeline", FORMAT):
        raise MalformedTimeline(fault)
    return recorded_timeline(record)


def recorded_timeline(record: Mapping[str, Any]) -> Timeline:
    """The timeline of an object as its JSON text holds; raises `MalformedTimeline`."""
    try:
        return _timeline(record)
    except MalformedGraph as error:
        raise MalformedTimeline(f"graph: {error.reason}") from None
    except MalformedMemory as error:
        raise MalformedTimeline(f"memory: {error.reason}") from None
    except (KeyError, OverflowError) as error:
        raise MalformedTimeline(f"is not a timeline: {type(error).__name__} {error}") from None


def _timeline(record: Mapping[str, Any]) -> Timeline:
    if not isinstance(record["source"], str):
        raise MalformedTimeline("source is not a name")
    graph = recorded_graph(record["graph"])
    _require_sound(graph)
    timeline = _of_times(record, graph, record["source"], _about(record["about"]))
    timeline = replace(timeline, memory=recorded_memory(record.get("memory", []), graph))
    if "replicas" in record:
        return replace(timeline, replicas=_replicas(record["replicas"], timeline))
    return timeline


def _of_times(record: Mapping[str, Any], graph: TaskGraph, source: str, about: About) -> Timeline:
    tasks = len(graph)
    start, end = (_seconds(record[name], name, tasks) for name in NEEDED)
    posted, ready = (
        None if record[name] is None else _seconds(record[name], name, tasks)
        for name in MEASURED_ALONE
    )
    return Timeline(graph, start, end, source, posted, ready, about)


def _replicas(record: object, timeline: Timeline) -> Replicas:
    """Timelines of all replicas: each differs from the file's own in its times."""
    if not isinstance(record, dict):
        raise MalformedTimeline("replicas: is not an object")
    listed, places = record["times"], record["of_replica"]
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise MalformedTimeline("replicas: there are no times of each")
    if not isinstance(places, list) or not {*map(type, places)} == {int}:
        raise MalformedTimeline("replicas: of_replica does not hold numbers")
    shown, groups = record["shown"], record["groups"]
    if not {*places} <= {*range(len(listed))} or shown not in range(len(places)):
        raise MalformedTimeline(f"replicas: of_replica or shown is not one of {len(listed)}")
    if type(groups) is not int or groups < 1 or len(listed) % groups:
        raise MalformedTimeline(f"replicas: {len(listed)} cannot be in groups")
    if groups > 1 and not timeline.graph.communication.hybrid:
        raise MalformedTimeline("replicas: without hybrid sharding, they are one group")
    own = [_of_times(each, timeline.graph, timeline.source, timeline.about) for each in listed]
    return Replicas(own, np.array(places, dtype=np.int32), int(shown), groups)


def _seconds(values: object, name: str, tasks: int) -> Seconds:
    if not isinstance(values, list) or any(type(value) not in (float, int) for value in values):
        raise MalformedTimeline(f"{name} does not hold seconds")
    if len(values) != tasks:
        raise MalformedTimeline(f"{name} does not hold seconds for each of {tasks} tasks")
    try:
        column = np.array(values, dtype=np.float64)
    except OverflowError:
        column = np.full(1, np.inf)
    if not np.isfinite(column).all():
        raise MalformedTimeline(f"{name} holds a number that is not finite")
    if (np.abs(column) > MOST_SECONDS).any():
        raise MalformedTimeline(f"{name} holds more than {MOST_SECONDS:g} seconds")
    return column


def _about(record: object) -> About:
    if not isinstance(record, dict):
        raise MalformedTimeline("about does not hold names with their values")
    for name, value in record.items():
        is_number = type(value) in (int, float) and -math.inf < value < math.inf
        if not (is_number or isinstance(value, str)):
            raise MalformedTimeline(f"about: {name!r} is neither a text nor a finite number")
    return record


def _require_sound(graph: TaskGraph) -> None:
    """Refuse a graph that no tool could walk through, or whose ranks have nothing to do."""
    for rule in (columns, numbering):
        for message, _ in rule(graph):
            raise MalformedTimeline(f"graph: {message}")
    rank_of_lane = np.array([lane.rank for lane in graph.lanes], dtype=np.int32)
    for rank, lane in ((graph.rank, graph.lane), (graph.peer, graph.peer_lane)):
        _require_same(np.where(lane == NONE, NONE, rank_of_lane[lane]), rank)
    computing = np.unique(graph.rank[graph.is_compute])
    if len(computing) < graph.layout.pp:
        raise MalformedTimeline("graph: there is a rank without a forward or a backward pass")


def _require_same(of_lane: Integers, rank: Integers) -> None:
    different = np.flatnonzero(of_lane != rank)
    if len(different):
        raise MalformedTimeline(f"graph: #{different[0]} is on a lane of another rank than its own")

"""Write and read Chakra execution traces: one file a rank, by MLCommons' schema et_def.proto.

Each file holds its metadata, and a node for each task of the rank; a transfer is a send at one end
and a receive at the other, with equal tags. Rules:

- A node's number is that of its task. `data_deps` are its dependencies that have a node in the same
  file, `ctrl_deps` the task ahead of it on each lane there.
- Chakra counts whole microseconds, from the start of the step. The seconds themselves are
  attributes (`start_seconds`, `end_seconds`), from which what is read back is exact.
- A timeline has no message sizes, so the traces have no `comm_size`.
- The file of rank 0 has the whole task graph in its metadata, for what nodes have no place for:
  dependencies on tasks of other ranks, buffers, and the schedule's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bfpp.schedules.columns import NONE, Flags
from bfpp.schedules.formats.graph_json import graph_record
from bfpp.schedules.operations.operations import OPERATIONS, Operation
from bfpp.schedules.operations.row import Group
from bfpp.traces.formats.protobuf import (
    MalformedMessage,
    delimited,
    field,
    fields,
    messages,
    packed,
)
from bfpp.traces.formats.timeline_json import recorded_timeline
from bfpp.traces.timeline.labels import task_name
from bfpp.traces.timeline.timeline import Timeline
from bfpp.traces.timeline.units import MICROSECONDS_PER_SECOND

VERSION = "0.0.4"
SUFFIX = ".et"

COMPUTES, SENDS, RECEIVES, COLLECTIVE = 4, 5, 6, 7
"""Types of nodes."""

COLLECTIVES = {
    "all-reduce": 0, "gather": 2, "all-gather": 2, "all-to-all": 6, "reduce-scatter": 7,
}  # fmt: skip
"""Types of collectives by operation: a gather of weights is an all-gather."""
ALL_REDUCE = 0

GRAPH, SOURCE, ABOUT = "bfpp.graph", "bfpp.source", "bfpp.about"
START, END, POSTED, READY = "start_seconds", "end_seconds", "posted_seconds", "ready_seconds"
LEFT_OUT_WHERE_NONE = {POSTED: "posted", READY: "ready"}

_NUMBER, _NAME, _TYPE, _AFTER, _DATA, _BEGUN, _LASTED, NODE_ATTRIBUTE = 1, 2, 3, 4, 5, 6, 7, 10
"""Fields of a node."""
_VALUES: dict[type, int] = {float: 3, int: 9, bool: 27, str: 29}
"""Fields of an attribute's value; its name is the first one."""


def chakra_files(timeline: Timeline) -> Iterator[tuple[str, bytes]]:
    """The name and the content of each rank's file."""
    for rank in range(timeline.graph.layout.pp):
        yield f"chakra.{rank}{SUFFIX}", b"".join(map(delimited, _rank(timeline, rank)))


def _rank(timeline: Timeline, rank: int) -> Iterator[bytes]:
    graph = timeline.graph
    attributes = {"rank": rank, "schedule": graph.schedule, SOURCE: timeline.source}
    if rank == 0:
        attributes[ABOUT] = json.dumps(dict(timeline.about))
        attributes[GRAPH] = json.dumps(graph_record(graph))
    yield field(1, VERSION) + _attributes(2, attributes)
    ahead = _ahead_on_lanes(timeline, rank)
    own = graph.takes_part(rank)
    for number in np.flatnonzero(own).tolist():
        yield _node(timeline, number, rank, ahead.get(number, ()), own)


def _ahead_on_lanes(timeline: Timeline, rank: int) -> Mapping[int, Sequence[int]]:
    """For each task of a rank, those before it on its lanes there."""
    ahead: dict[int, list[int]] = {}
    for lane in timeline.graph.lanes_of(rank):
        tasks = timeline.lane_tasks(lane).tolist()
        for one, other in pairwise(tasks):
            ahead.setdefault(other, []).append(one)
    return ahead


def _node(timeline: Timeline, number: int, rank: int, ahead: Sequence[int], own: Flags) -> bytes:
    task, start, end = timeline.describe(number)
    first = timeline.first_start
    begun = round((start - first) * MICROSECONDS_PER_SECOND)
    kind, attributes = _kind(timeline, number, rank)
    attributes |= {START: start, END: end}
    for name, column in LEFT_OUT_WHERE_NONE.items():
        if (seconds := getattr(timeline, column)) is not None:
            attributes[name] = float(seconds[number])
    for name in ("stage", "microbatch", "unit"):
        if (value := getattr(task, name)) != NONE:
            attributes[name] = value
    return b"".join(
        [
            field(_NUMBER, number),
            field(_NAME, task_name(task)),
            field(_TYPE, kind),
            packed(_AFTER, ahead),
            packed(_DATA, (each for each in task.dependencies if own[each])),
            field(_BEGUN, begun),
            field(_LASTED, round((end - first) * MICROSECONDS_PER_SECOND) - begun),
            _attributes(NODE_ATTRIBUTE, attributes),
        ]
    )


def _kind(timeline: Timeline, number: int, rank: int) -> tuple[int, dict[str, Any]]:
    """The type of a task's node, and the attributes that go with it."""
    graph = timeline.graph
    operation: Operation = OPERATIONS[graph.operation[number]]
    if graph.is_transfer[number]:
        ends = {"comm_src": int(graph.rank[number]), "comm_dst": int(graph.peer[number])}
        kind = SENDS if ends["comm_src"] == rank else RECEIVES
        return kind, {"is_cpu_op": False, **ends, "comm_tag": number}
    if operation.group(graph.communication) in (Group.ALONE, Group.PP):
        return COMPUTES, {"is_cpu_op": False}
    algorithm = operation.algorithm(graph.communication)
    return COLLECTIVE, {"is_cpu_op": False, "comm_type": COLLECTIVES.get(algorithm, ALL_REDUCE)}


def _attributes(number: int, values: Mapping[str, Any]) -> bytes:
    return b"".join(
        field(number, field(1, name) + field(_VALUES[type(value)], value))
        for name, value in values.items()
    )


# Reading


def is_chakra(path: Path) -> bool:
    """True for a file with the suffix of such a trace."""
    return path.name.endswith(SUFFIX)


def read_chakra(files: Sequence[bytes]) -> Timeline:
    """The timeline of all ranks' files; raises `InvalidFile` unless bfpp wrote them."""
    about: dict[str, Any] = {}
    times: dict[str, dict[int, float]] = {START: {}, END: {}, POSTED: {}, READY: {}}
    for data in files:
        metadata, *nodes = messages(data) if data else [b""]
        about |= read_attributes(metadata, 2)
        for node in nodes:
            number = _number(node)
            attributes = read_attributes(node, NODE_ATTRIBUTE)
            for name, column in times.items():
                if isinstance(seconds := attributes.get(name), float):
                    column[number] = seconds
    try:
        record = {"source": about[SOURCE], "about": json.loads(about[ABOUT])}
        record["graph"] = json.loads(about[GRAPH])
    except (KeyError, ValueError, TypeError):
        reason = "bfpp did not write rank 0's trace, or it is not given: bfpp explain TRACE..."
        raise MalformedMessage(f"{reason} replays those of others, which have no times") from None
    for name, key in {START: "start", END: "end", **LEFT_OUT_WHERE_NONE}.items():
        column = times[name]
        record[key] = [column[each] for each in sorted(column)] if column else None
    return recorded_timeline(record)


def _number(node: bytes) -> int:
    numbers = (each for at, each in fields(node) if at == _NUMBER and isinstance(each, int))
    return next(numbers, 0)  # other writers leave 0 out


def read_attributes(message: bytes, number: int) -> dict[str, Any]:
    """The attributes in a repeated field, those of other types as they are on the wire."""
    attributes = {}
    for place, value in fields(message):
        if place == number and isinstance(value, bytes):
            parts = dict(fields(value))
            name = parts.pop(1, b"")
            if isinstance(name, bytes):
                attributes[name.decode("utf-8", "replace")] = _value(
                    next(iter(parts.items()), (0, 0))
                )
    return attributes


def _value(of_attribute: tuple[int, Any]) -> Any:
    place, value = of_attribute
    is_text = place == _VALUES[str] and isinstance(value, bytes)
    return value.decode("utf-8", "replace") if is_text else value

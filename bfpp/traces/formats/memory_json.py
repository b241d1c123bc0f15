"""Memory of ranks, as a part of a timeline's JSON.

A list with an object for each rank: `during` and `after`, in which each part has its bytes in each
of the rank's steps; one number where it is the same in all. And `copied`, if activations are
offloaded: the bytes of each of the rank's copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.errors import InvalidFile
from bfpp.traces.timeline.memory_record import PARTS, MemoryRecord, Parts, copies_of, steps_of

WHEN = ("during", "after")
COPIED = "copied"


class MalformedMemory(InvalidFile):
    """An object that is not the memory of ranks; the reason is one line."""


def memory_record(memory: Sequence[MemoryRecord]) -> list[dict[str, Any]]:
    """The memory of each rank, for JSON."""
    return [
        {when: _record(getattr(each, when)) for when in WHEN}
        | ({COPIED: _short(each.copied)} if len(each.copied) else {})
        for each in memory
    ]


def _record(parts: Parts) -> dict[str, Any]:
    return {name: _short(sizes) for name, sizes in parts.items()}


def _short(sizes: Numbers) -> float | list[float]:
    short: float | list[float] = sizes[0].item() if (sizes == sizes[0]).all() else sizes.tolist()
    return short


def recorded_memory(record: object, graph: TaskGraph) -> list[MemoryRecord]:
    """The memory of a graph's ranks from JSON; raises `MalformedMemory`."""
    if not isinstance(record, list) or len(record) not in (0, graph.layout.pp):
        raise MalformedMemory(f"is not a list with an object for each of {graph.layout.pp} ranks")
    return [_rank_record(each, rank, graph, record[0]) for rank, each in enumerate(record)]


def _rank_record(
    record: object, rank: int, graph: TaskGraph, first: dict[str, Any]
) -> MemoryRecord:
    if not isinstance(record, dict) or not all(isinstance(record.get(when), dict) for when in WHEN):
        raise MalformedMemory(f"rank {rank} has no objects {' and '.join(map(repr, WHEN))}")
    names = record["during"].keys()
    if not names or not names <= {*PARTS.values()}:
        raise MalformedMemory(f"rank {rank} has parts other than {', '.join(PARTS.values())}")
    if any(names != each.keys() for each in (record["after"], first["during"])):
        raise MalformedMemory(
            f"rank {rank} does not have the parts of rank 0, during and after its steps"
        )
    steps, copies = len(steps_of(graph, rank)), len(copies_of(graph, rank))
    during, after = (
        {
            name: _sizes(record[when][name], f"{when!r} of rank {rank}: {name!r}", steps, "steps")
            for name in names
        }
        for when in WHEN
    )
    copied = _sizes(record.get(COPIED, 0.0), f"{COPIED!r} of rank {rank}", copies, "copies")
    return MemoryRecord(rank, during, after, copied)


def _sizes(record: Any, what: str, number: int, of: str) -> Numbers:
    """The bytes in each of a number of steps, or of copies."""
    each = record if isinstance(record, list) else [record] * number
    if len(each) != number:
        raise MalformedMemory(f"{what} has {len(each)} sizes for {number} {of}")
    if not all(type(size) in (int, float) and 0 <= size < math.inf for size in each):
        raise MalformedMemory(f"{what} has a size that is not a number of bytes")
    return np.array(each, dtype=np.float64)

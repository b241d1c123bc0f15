"""Nodes of Chakra execution traces that other programs wrote, such as `chakra_converter`.

The schema is MLCommons' et_def.proto. The converter leaves start times out: a node has the time
that its own work took, without that of the operators which it calls, and the nodes that it waits
for, `data_deps`: the operator before it on its thread, the launch of a kernel, and what streams
wait for. `ctrl_deps` are the operators that called it, which may wait for it in turn; simulators
(Chakra's feeder) do not wait for them either. Nodes of a device are those whose `is_cpu_op` is not
true; their lane is `stream`, or `tid` where older converters wrote that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bfpp.traces.formats.chakra import (
    COLLECTIVE,
    NODE_ATTRIBUTE,
    RECEIVES,
    SENDS,
    SOURCE,
    read_attributes,
)
from bfpp.traces.formats.protobuf import MalformedMessage, Value, fields, messages, varints
from bfpp.traces.timeline.units import MICROSECONDS_PER_SECOND

COLLECTIVE_NAMES = (
    "all-reduce", "reduce", "all-gather", "gather", "scatter", "broadcast", "all-to-all",
    "reduce-scatter", "reduce-scatter-block", "barrier",
)  # fmt: skip
"""Names of `comm_type`, by its number."""

POINT_TO_POINT = {SENDS: "send", RECEIVES: "recv"}

LONGEST = 1e12 * MICROSECONDS_PER_SECOND

_NUMBER, _NAME, _TYPE, _DATA, _DURATION = 1, 2, 3, 5, 7


class ChakraNode(NamedTuple):
    """One node: `seconds` of its own, after those that it waits for, on a lane of its rank."""

    number: int
    name: str
    seconds: float
    after: tuple[int, ...]
    on_host: bool
    communicates: bool
    lane: str
    group: str | None = None
    operation: str | None = None
    bytes: int | None = None

    @property
    def is_collective(self) -> bool:
        """True for a kernel that several ranks run together."""
        return self.communicates and self.operation not in POINT_TO_POINT.values()


def read_nodes(data: bytes) -> list[ChakraNode]:
    """The nodes of one rank's file; raises `MalformedMessage`."""
    metadata, *nodes = messages(data) if data else [b""]
    if SOURCE in read_attributes(metadata, 2):
        raise MalformedMessage("is a trace of --chakra: bfpp import makes a timeline of it")
    read = [_node(each) for each in nodes]
    if len({each.number for each in read}) < len(read):
        raise MalformedMessage("two nodes have one number")
    return read


def _node(message: bytes) -> ChakraNode:
    parts: dict[int, Value] = {}
    after: list[int] = []
    for place, value in fields(message):
        if place == _DATA:
            after += varints(value)
        else:
            parts[place] = value
    about = read_attributes(message, NODE_ATTRIBUTE)
    number, kind, duration = (_whole(parts.get(it, 0)) for it in (_NUMBER, _TYPE, _DURATION))
    if duration > LONGEST:
        raise MalformedMessage(f"node {number} takes {duration} microseconds")
    name = parts.get(_NAME, b"")
    on_host = bool(about.get("is_cpu_op", False))
    communicates = not on_host and kind in (SENDS, RECEIVES, COLLECTIVE)
    size, group = about.get("comm_size"), about.get("pg_name")
    return ChakraNode(
        number,
        name.decode("utf-8", "replace") if isinstance(name, bytes) else "",
        duration / MICROSECONDS_PER_SECOND,
        tuple(dict.fromkeys(after)),
        on_host,
        communicates,
        _lane(about, on_host, communicates),
        group if communicates and isinstance(group, str) and group else None,
        _operation(kind, about) if communicates else None,
        size if communicates and isinstance(size, int) else None,
    )


def _lane(about: dict[str, Any], on_host: bool, communicates: bool) -> str:
    if on_host:
        return f"thread {about.get('tid', 0)}"
    if (stream := about.get("stream", about.get("tid"))) is None:
        return "communication" if communicates else "compute"
    return f"stream {stream}"


def _operation(kind: int, about: dict[str, Any]) -> str | None:
    known: dict[Any, str] = dict(enumerate(COLLECTIVE_NAMES))
    if kind in POINT_TO_POINT:
        return POINT_TO_POINT[kind]
    number = about.get("comm_type")
    return known.get(number) if isinstance(number, int) else None


def _whole(value: Value) -> int:
    if not isinstance(value, int):
        raise MalformedMessage("a node's number, type or duration is no whole number")
    return value

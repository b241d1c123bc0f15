"""What Nsight Systems saw of each process: its SQLite export, by the documented schema.

Read are NVTX ranges, CUDA's calls and kernels. Operators are ranges with names as PyTorch's
`emit_nvtx` gives them (`aten::mm, seq = 3`): those of one sequence number are an operator and its
backward pass. Other ranges are annotations. Times are nanoseconds after the session's start, which
is on the host's clock.

A file holds the processes that one `nsys profile` started, of any number of ranks. Which ranks
these are it does not say: they are in the order of their devices.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from bfpp.traces.recorded import MalformedTrace, Recorded, TracedRange, as_launched, outermost

SECONDS_PER_NANOSECOND = 1e-9

SQLITE = b"SQLite format 3\x00"
REPORTS = (".nsys-rep", ".qdrep")
"""How the names end of what `nsys profile` writes: in a form of its own, to be exported."""

PUSHED, STARTED = 59, 60
"""NVTX_EVENTS.eventType of ranges: of a thread, and of a process."""

THREAD_BITS = 24
"""A globalTid is a globalPid with the thread's number in its last bits."""

_OPERATOR = re.compile(r"\w+::")
_CALL = re.compile(r"(.*?)(?:, seq = (\d+))?(?:, op_id = \d+)?(?:, (?:sizes|input_op_ids) = .*)?")
"""A range's name as `emit_nvtx` writes it: the operator, then what it says of the call."""

_AUTOGRAD = "autograd::"

_RANGES = """
    SELECT COALESCE(NVTX_EVENTS.text, StringIds.value), globalTid, start, end
    FROM NVTX_EVENTS LEFT JOIN StringIds ON StringIds.id = NVTX_EVENTS.textId
    WHERE eventType IN (?, ?) AND end IS NOT NULL AND globalTid IS NOT NULL
"""
_LAUNCHES = "SELECT globalTid, correlationId, start FROM CUPTI_ACTIVITY_KIND_RUNTIME"
_KERNELS = """
    SELECT StringIds.value, globalPid, deviceId, streamId, correlationId, start, end
    FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON StringIds.id = shortName
"""
_SESSION = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"


def is_nsight(path: Path) -> bool:
    """Whether a file is an SQLite database, or a report that is yet to be exported to one."""
    if path.name.endswith(REPORTS):
        return True
    if not path.is_file():
        return False  # a pipe is read once
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


def recorded_processes(path: Path) -> list[Recorded]:
    """What a file holds of each process that has ranges or kernels; raises `MalformedTrace`."""
    if path.name.endswith(REPORTS):
        raise MalformedTrace(
            f"is a report: nsys export --type sqlite {path.name} makes what can be read"
        )
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return _processes(database)
    except MalformedTrace:
        raise
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise MalformedTrace(f"is not what nsys exports: {error}") from None


@dataclass
class _Process:
    """What is found of a process, and the devices of its kernels."""

    ranges: list[TracedRange] = field(default_factory=list)
    kernels: list[TracedRange] = field(default_factory=list)
    devices: set[int] = field(default_factory=set)
    sequence: dict[TracedRange, str] = field(default_factory=dict)


def _processes(database: sqlite3.Connection) -> list[Recorded]:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    if not tables & {"NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL"}:
        raise MalformedTrace(
            "holds neither NVTX ranges nor kernels: nsys profile --trace=cuda,nvtx"
        )
    found: dict[int, _Process] = defaultdict(_Process)
    if "NVTX_EVENTS" in tables:
        _add_ranges(database, found)
    if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
        _add_kernels(database, found, "CUPTI_ACTIVITY_KIND_RUNTIME" in tables)
    base = 0
    if "TARGET_INFO_SESSION_START_TIME" in tables:
        (base,) = database.execute(_SESSION).fetchone() or (0,)
    in_order = sorted(found, key=lambda number: (sorted(found[number].devices), number))
    return [_recorded(found[number], int(base)) for number in in_order]


def _add_ranges(database: sqlite3.Connection, found: dict[int, _Process]) -> None:
    for text, thread, start, end in database.execute(_RANGES, (PUSHED, STARTED)):
        call = _CALL.fullmatch(text or "")
        if call is None:  # a name of several lines
            continue
        process = found[thread >> THREAD_BITS]
        begun = _seconds(start)
        it = TracedRange(call[1], thread, begun, begun, _seconds(end))
        process.ranges.append(it)
        if call[2]:
            process.sequence[it] = call[2]


def _add_kernels(
    database: sqlite3.Connection, found: dict[int, _Process], has_launches: bool
) -> None:
    launched: dict[tuple[int, int], int] = {}
    if has_launches:
        for thread, correlation, start in database.execute(_LAUNCHES):
            launched[thread >> THREAD_BITS, correlation] = start
    for name, number, device, stream, correlation, start, end in database.execute(_KERNELS):
        process = found[number >> THREAD_BITS]
        begun = launched.get((number >> THREAD_BITS, correlation), start)
        lane = device, stream
        process.kernels.append(
            TracedRange(name, lane, _seconds(begun), _seconds(start), _seconds(end))
        )
        process.devices.add(device)


def _recorded(process: _Process, base: int) -> Recorded:
    operators = [it for it in process.ranges if _OPERATOR.match(it.name)]
    return Recorded(
        rank=None,
        base=base,
        annotations=as_launched(it for it in process.ranges if not _OPERATOR.match(it.name)),
        functions=[],
        operators=as_launched(outermost(operators)),
        kernels=as_launched(process.kernels),
        kept=sorted(_kept(operators, process.sequence)),
    )


def _kept(operators: Sequence[TracedRange], sequence: dict[TracedRange, str]) -> Iterator[float]:
    """When operators began whose sequence numbers autograd came back to."""
    again = {sequence[it] for it in operators if it in sequence and it.name.startswith(_AUTOGRAD)}
    for it in operators:
        if sequence.get(it) in again and not it.name.startswith(_AUTOGRAD):
            yield it.start


def _seconds(nanoseconds: int) -> float:
    return nanoseconds * SECONDS_PER_NANOSECOND

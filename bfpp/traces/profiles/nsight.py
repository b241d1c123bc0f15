"""Read profiles of Nsight Systems: its SQLite export, by the documented schema.

Read are NVTX ranges, CUDA's calls and kernels. Operators are ranges with names as PyTorch's
`emit_nvtx` gives them (`aten::mm, seq = 3`): those of one sequence number are an operator and its
backward pass. Other ranges are annotations. Times are nanoseconds after the session's start, which
is on the host's clock.

A file holds the processes that one `nsys profile` started, of any number of ranks. It does not name
the ranks: they are in the order of their devices.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from bfpp.traces.profiles.profile import (
    MalformedTrace,
    Profile,
    TracedRange,
    as_launched,
    outermost,
)
from bfpp.traces.timeline.units import SECONDS_PER_NANOSECOND

SQLITE = b"SQLite format 3\x00"
REPORTS = (".nsys-rep", ".qdrep")
"""Suffixes of the files that `nsys profile` writes, in its own format: to be exported."""

PUSHED, STARTED = 59, 60
"""NVTX_EVENTS.eventType of ranges: of a thread, and of a process."""

THREAD_BITS = 24
"""A globalTid is a globalPid with the thread's number in its last bits."""

Read = TypeVar("Read")

_OPERATOR = re.compile(r"\w+::")
_CALL = re.compile(r"(.*?)(?:, seq = (\d+))?(?:, op_id = \d+)?(?:, (?:sizes|input_op_ids) = .*)?")
"""A range's name as `emit_nvtx` writes it: the operator, then details of the call."""

_AUTOGRAD = "autograd::"

STRINGS = "SELECT id, value FROM StringIds"
RANGES = """
    SELECT text, textId, globalTid, start, end
    FROM NVTX_EVENTS
    WHERE eventType IN (?, ?) AND end IS NOT NULL AND globalTid IS NOT NULL
"""
LAUNCHES = "SELECT globalTid, correlationId, start FROM CUPTI_ACTIVITY_KIND_RUNTIME"
_KERNELS = """
    SELECT shortName, globalPid, deviceId, streamId, correlationId, start, end
    FROM CUPTI_ACTIVITY_KIND_KERNEL
"""
SESSION = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
"""Tables that hold rows; not views and virtual tables, which compute them."""

LONGEST = 2**20
"""Bytes of a text, or of any other value, in a file."""

SECONDS, BYTES_A_SECOND = 10, 2**19
"""Limit on the time to read a file: these seconds, and a second more for as many bytes."""

STEPS = 10_000
"""Steps of SQLite's between two looks at the clock."""


def is_nsight(path: Path) -> bool:
    """True for an SQLite database, or a report that is yet to be exported to one."""
    if path.name.endswith(REPORTS):
        return True
    if not path.is_file():
        return False  # a pipe is read once
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


def read_nsight(path: Path) -> list[Profile]:
    """A profile of each process in a file with ranges or kernels; raises `MalformedTrace`."""
    return read_database(path, _processes)


def read_database(path: Path, read: Callable[[Database], list[Read]]) -> list[Read]:
    """Results of `read` on an export's tables; raises `MalformedTrace`."""
    if path.name.endswith(REPORTS):
        raise MalformedTrace(
            f"is a report: nsys export --type sqlite {path.name} makes what can be read"
        )
    try:
        with closing(Database(path)) as database:
            return read(database)
    except MalformedTrace:
        raise
    except (sqlite3.Error, TypeError, ValueError, ArithmeticError) as error:
        raise MalformedTrace(f"is not what nsys exports: {error}") from None


class Database:
    """The tables of an untrusted file, read only, and within limits of time and size.

    All rows read together are no larger than the file: in a hostile one, text may be computed or
    shared by all rows, and rows may lead back to others.
    """

    def __init__(self, path: Path) -> None:
        self._left = path.stat().st_size
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        end = monotonic() + SECONDS + self._left / BYTES_A_SECOND
        self._connection.set_progress_handler(lambda: monotonic() > end, STEPS)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        for setting in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
            self._connection.execute(f"PRAGMA {setting}")
        self.tables = {name for (name,) in self._connection.execute(_TABLES)}
        self.close = self._connection.close

    def rows(self, query: str, *arguments: int) -> Iterator[tuple[Any, ...]]:
        """The rows of a query's result."""
        for row in self._connection.execute(query, arguments):
            self._left -= 1 + sum(len(each) for each in row if isinstance(each, str | bytes))
            if self._left < 0:
                raise MalformedTrace("is not what nsys exports: it holds more than its size")
            yield row


@dataclass
class _Process:
    """The ranges and kernels of a process, and the devices of its kernels."""

    ranges: list[TracedRange] = field(default_factory=list)
    kernels: list[TracedRange] = field(default_factory=list)
    devices: set[int] = field(default_factory=set)
    sequence: dict[TracedRange, str] = field(default_factory=dict)


def _processes(database: Database) -> list[Profile]:
    tables = database.tables
    processes: dict[int, _Process] = defaultdict(_Process)
    # Joined here, each row is read once: of many strings with one id, a join makes many rows.
    strings = dict(database.rows(STRINGS)) if "StringIds" in tables else {}
    if "NVTX_EVENTS" in tables:
        _add_ranges(database, processes, strings)
    if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
        _add_kernels(database, processes, strings, "CUPTI_ACTIVITY_KIND_RUNTIME" in tables)
    if not processes:
        raise MalformedTrace(
            "holds neither NVTX ranges nor kernels: nsys profile --trace=cuda,nvtx"
        )
    base = 0
    if "TARGET_INFO_SESSION_START_TIME" in tables:
        (base,) = next(database.rows(SESSION), (0,))
    in_order = sorted(processes, key=lambda number: (sorted(processes[number].devices), number))
    return [_profile(processes[number], int(base)) for number in in_order]


def _add_ranges(
    database: Database, processes: dict[int, _Process], strings: Mapping[int, str]
) -> None:
    for text, number, thread, start, end in database.rows(RANGES, PUSHED, STARTED):
        name = strings.get(number, "") if text is None else text
        # In a name of several lines, the expression would go back again and again.
        if "\n" in name or (call := _CALL.fullmatch(name)) is None:
            continue
        process = processes[thread >> THREAD_BITS]
        begun = _seconds(start)
        it = TracedRange(call[1], thread, begun, begun, _seconds(end))
        process.ranges.append(it)
        if call[2]:
            process.sequence[it] = call[2]


def _add_kernels(
    database: Database,
    processes: dict[int, _Process],
    strings: Mapping[int, str],
    has_launches: bool,
) -> None:
    launched: dict[tuple[int, int], int] = {}
    if has_launches:
        for thread, correlation, start in database.rows(LAUNCHES):
            launched[thread >> THREAD_BITS, correlation] = start
    for text, number, device, stream, correlation, start, end in database.rows(_KERNELS):
        if text not in strings:
            continue
        process = processes[number >> THREAD_BITS]
        begun = launched.get((number >> THREAD_BITS, correlation), start)
        lane = device, stream
        process.kernels.append(
            TracedRange(str(strings[text]), lane, _seconds(begun), _seconds(start), _seconds(end))
        )
        process.devices.add(device)


def _profile(process: _Process, base: int) -> Profile:
    operators = [it for it in process.ranges if _OPERATOR.match(it.name)]
    return Profile(
        rank=None,
        base=base,
        annotations=as_launched(it for it in process.ranges if not _OPERATOR.match(it.name)),
        functions=[],
        operators=as_launched(outermost(operators)),
        kernels=as_launched(process.kernels),
        differentiated=sorted(_differentiated(operators, process.sequence)),
    )


def _differentiated(
    operators: Sequence[TracedRange], sequence: dict[TracedRange, str]
) -> Iterator[float]:
    """Begins of operators with a backward pass: autograd has an operator of their number, too."""
    again = {sequence[it] for it in operators if it in sequence and it.name.startswith(_AUTOGRAD)}
    for it in operators:
        if sequence.get(it) in again and not it.name.startswith(_AUTOGRAD):
            yield it.start


def _seconds(nanoseconds: object) -> float:
    if not isinstance(nanoseconds, int):
        raise TypeError(f"{nanoseconds!r} is no number of nanoseconds")
    return nanoseconds * SECONDS_PER_NANOSECOND

"""SQLite files as Nsight Systems exports them, by its documented schema."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from bfpp.traces.profiles.nsight import PUSHED

SCHEMA = """
    CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE TARGET_INFO_SESSION_START_TIME (
        utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
    CREATE TABLE NVTX_EVENTS (
        start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
        text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
        start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER,
        nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
        start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
        streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
        demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL);
"""
MARK = 34
PROCESS = 1 << 24


class Named(NamedTuple):
    """A range of NVTX, in nanoseconds."""

    name: str
    start: int
    end: int


class Kernel(NamedTuple):
    """A kernel, and when the host launched it."""

    name: str
    launched: int
    start: int
    end: int


class Seen(NamedTuple):
    """The activities of one process, on one device."""

    device: int
    ranges: Iterable[Named]
    kernels: Iterable[Kernel] = ()


def write_nsight(path: Path, processes: Iterable[Seen], began: int = 0) -> Path:
    """A file of these processes, whose names stand in a row or in the table of strings."""
    strings: dict[str, int] = {}

    def number(text: str) -> int:
        return strings.setdefault(text, len(strings))

    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(SCHEMA)
        database.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", [began])
        for pid, process in enumerate(processes, 100):
            thread, ranges, launches, kernels = pid * PROCESS + 7, [], [], []
            ranges.append((0, None, MARK, None, "a mark", thread, None, None, 0))
            for place, it in enumerate(process.ranges):
                told = (None, number(it.name)) if place % 2 else (it.name, None)
                row = (it.start, it.end, PUSHED, None, told[0], thread, None, told[1], 0)
                ranges.append(row)
            for place, each in enumerate(process.kernels):
                # Processes number their calls alike, and autograd launches from its own thread.
                call = (each.launched, each.launched + 1, thread + 1, place)
                launches.append((*call, number("cudaLaunchKernel_v7000"), 0))
                names = number(each.name + "(float)"), number(each.name)
                device = process.device, 7, place, pid * PROCESS
                kernels.append((each.start, each.end, *device, *names))
            for table, rows in (
                ("NVTX_EVENTS", ranges),
                ("CUPTI_ACTIVITY_KIND_RUNTIME", launches),
                ("CUPTI_ACTIVITY_KIND_KERNEL", kernels),
            ):
                if rows:
                    places = ", ".join("?" * len(rows[0]))
                    database.executemany(f"INSERT INTO {table} VALUES ({places})", rows)
        rows = [(place, text) for text, place in strings.items()]
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", rows)
    return path

"""Read device activities from an SQLite export of Nsight Systems: kernels, copies, launches.

The export has neither process groups nor sizes of collectives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bfpp.traces.profiles.device_profile import (
    Activities,
    ActivityKind,
    CollectiveCall,
    DeviceActivity,
    DeviceProfile,
    MarkedStep,
    is_communication,
)
from bfpp.traces.profiles.nsight import (
    LAUNCHES,
    PUSHED,
    RANGES,
    STARTED,
    STRINGS,
    THREAD_BITS,
    Database,
    read_database,
)
from bfpp.traces.profiles.profile import STEP, MalformedTrace
from bfpp.traces.timeline.units import NANOSECONDS_PER_SECOND

SOURCE = "Nsight Systems"

_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": """
        SELECT globalPid, deviceId, streamId, correlationId, start, end, shortName, NULL, NULL
        FROM CUPTI_ACTIVITY_KIND_KERNEL
    """,
    "CUPTI_ACTIVITY_KIND_MEMCPY": """
        SELECT globalPid, deviceId, streamId, correlationId, start, end, NULL, bytes, copyKind
        FROM CUPTI_ACTIVITY_KIND_MEMCPY
    """,
    "CUPTI_ACTIVITY_KIND_MEMSET": """
        SELECT globalPid, deviceId, streamId, correlationId, start, end, NULL, bytes, NULL
        FROM CUPTI_ACTIVITY_KIND_MEMSET
    """,
}
"""Tables of activities, and how they are read."""

DIRECTIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
"""CUPTI's kinds of copies, as torch.profiler names them."""


def read_nsight_activities(path: Path) -> list[DeviceProfile]:
    """A profile of each process in a file, by their devices; raises `MalformedTrace`."""
    return read_database(path, _processes)


def _processes(database: Database) -> list[DeviceProfile]:
    strings = dict(database.rows(STRINGS)) if "StringIds" in database.tables else {}
    by_process: dict[int, Activities] = defaultdict(Activities)
    devices: dict[int, set[int]] = defaultdict(set)
    for process, device, activity in _activities(database, strings):
        by_process[process].rows.append(activity)
        devices[process].add(device)
    if "CUPTI_ACTIVITY_KIND_RUNTIME" in database.tables:
        for thread, correlation, start in database.rows(LAUNCHES):
            by_process[thread >> THREAD_BITS].launched.setdefault(correlation, _time(start))
    if "NVTX_EVENTS" in database.tables:
        _add_ranges(database, by_process, strings)
    if not by_process:
        raise MalformedTrace("holds no range, no call of CUDA and no kernel")
    in_order = sorted(by_process, key=lambda process: (sorted(devices[process]), process))
    return [by_process[process].profile(SOURCE, NANOSECONDS_PER_SECOND) for process in in_order]


def _activities(
    database: Database, strings: Mapping[int, Any]
) -> Iterator[tuple[int, int, DeviceActivity]]:
    """Process, device and activity of each row."""
    for table, query in _TABLES.items():
        if table not in database.tables:
            continue
        for pid, device, stream, correlation, start, end, number, size, copied in database.rows(
            query
        ):
            kind, name = ActivityKind.COPY, "Memset"
            if "MEMCPY" in table:
                name = f"Memcpy {DIRECTIONS.get(copied, '')}".strip()
            elif "KERNEL" in table:
                name = str(strings.get(number, "a kernel without a name"))
                kind = (
                    ActivityKind.COMMUNICATION if is_communication(name) else ActivityKind.COMPUTE
                )
            begin = _time(start)
            times = begin, max(_time(end), begin)
            lane = f"{device}/{stream}"
            size = None if size is None else max(float(size), 0.0)
            activity = DeviceActivity(
                kind, name, lane, *times, correlation, size, CollectiveCall(None, None, None)
            )
            yield pid >> THREAD_BITS, device, activity


def _add_ranges(
    database: Database, by_process: dict[int, Activities], strings: Mapping[int, Any]
) -> None:
    """Steps, and when the host was seen."""
    for text, number, thread, start, end in database.rows(RANGES, PUSHED, STARTED):
        name, own = str(strings.get(number, "") if text is None else text), thread >> THREAD_BITS
        begin, last = _time(start), _time(end)
        first, latest = by_process[own].host or (begin, last)
        by_process[own].host = min(first, begin), max(latest, last)
        if match := STEP.fullmatch(name):
            by_process[own].steps.append(MarkedStep(int(match[1] or match[2]), begin, last))


def _time(nanoseconds: object) -> float:
    if not isinstance(nanoseconds, int):
        raise TypeError(f"{nanoseconds!r} is no number of nanoseconds")
    return float(nanoseconds)

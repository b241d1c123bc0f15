"""Read device activities from a trace of torch.profiler, of any device and any age.

Groups and sizes of collectives are arguments of their kernels, or, before PyTorch 2.4, of the
operator that has the same external id. Waits on events, and ranges that were copied from the host
to a device, are no activities.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from typing import Any

from bfpp.traces.profiles.device_profile import (
    Activities,
    ActivityKind,
    CollectiveCall,
    DeviceActivity,
    DeviceProfile,
    MarkedStep,
    ProcessGroup,
    is_communication,
)
from bfpp.traces.profiles.kineto import require_events, whole
from bfpp.traces.profiles.profile import STEP, MalformedTrace
from bfpp.traces.timeline.units import MICROSECONDS_PER_SECOND

SOURCE = "torch.profiler"

KERNELS, COPIES = {"kernel"}, {"gpu_memcpy", "gpu_memset", "memcpy", "memset"}
OTHERS = {"mtia_ccp_events"}
"""Categories of activities, in lower case; others are recognised by name."""

LAUNCHES = {
    "cuda_runtime", "cuda_driver", "runtime", "mtia_runtime", "xpu_runtime", "privateuse1_runtime"
}  # fmt: skip
OPERATORS, COLLECTIVE = "cpu_op", "record_param_comms"
ANNOTATIONS = "user_annotation"

WAITS = {"event_record", "event_wait"}
"""Names of activities that take time on a stream and run nothing."""
MEMORY = ("memcpy", "memset", "dma_request")

RANK = "rank", "world_size"
MOST = 1e18
"""Larger than a time of any clock in microseconds, and than a size in bytes."""

BYTES = {
    "double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2, "byte": 1,
    "char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip
"""Bytes of an element, by PyTorch's name of its type in lower case."""


def read_kineto_activities(trace: object) -> DeviceProfile:
    """The devices' profile in a trace, given as parsed JSON; raises `MalformedTrace`."""
    whole_trace = require_events(trace)
    try:
        return _profile(whole_trace)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise MalformedTrace(f"an event is malformed: {type(error).__name__} {error}") from None


def _profile(trace: Mapping[str, Any]) -> DeviceProfile:
    about = trace.get("distributedInfo") or {}
    configured = {each.name: each for each in map(_configured, about.get("pg_config") or ())}
    slices = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    called = _collective_calls(slices)
    activities = Activities()
    for event in slices:
        category = str(event.get("cat")).lower()
        if category in KERNELS or category in COPIES or category in OTHERS:
            if activity := _activity(event, category, configured, called):
                activities.rows.append(activity)
        elif category in LAUNCHES:
            if (correlation := _argument(event, "correlation")) is not None:
                # Several calls may have one number: the first one is the launch.
                activities.launched.setdefault(correlation, _number(event["ts"]))
        elif category in {OPERATORS, ANNOTATIONS}:
            begin, end = _span(event)
            first, last = activities.host or (begin, end)
            activities.host = min(first, begin), max(last, end)
            if category == ANNOTATIONS and (match := STEP.fullmatch(str(event["name"]))):
                activities.steps.append(MarkedStep(int(match[1] or match[2]), begin, end))
    return activities.profile(
        SOURCE, MICROSECONDS_PER_SECOND, *(_whole_or_none(about, name) for name in RANK)
    )


def _activity(
    event: Mapping[str, Any],
    category: str,
    configured: Mapping[str, ProcessGroup],
    called: Mapping[Hashable, Mapping[str, Any]],
) -> DeviceActivity | None:
    """The activity of a device's event; none for a wait."""
    name = str(event["name"])
    if category in OTHERS and name in WAITS:
        return None
    begin, end = _span(event)
    about = event.get("args") or {}
    kind = _kind(name, category)
    size, collective = about.get("bytes"), CollectiveCall(None, None, None)
    if kind == ActivityKind.COMMUNICATION:
        described = about if "Collective name" in about else called.get(_id(about), about)
        collective = _collective(described, configured)
        size = collective.bytes
    return DeviceActivity(
        kind=kind,
        name=name,
        stream=_stream(event, about),
        start=begin,
        end=end,
        correlation=_argument(event, "correlation"),
        bytes=None if size is None else _amount(size),
        collective=collective,
    )


def _kind(name: str, category: str) -> ActivityKind:
    if category in COPIES or (category in OTHERS and name.lower().startswith(MEMORY)):
        return ActivityKind.COPY
    return ActivityKind.COMMUNICATION if is_communication(name) else ActivityKind.COMPUTE


def _stream(event: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """Device and stream; where the arguments do not say, the rows of the trace's viewer."""
    device = about.get("device", event.get("pid"))
    return f"{device}/{about.get('stream', event.get('tid'))}"


# Collectives


def _collective_calls(slices: list[Mapping[str, Any]]) -> dict[Hashable, Mapping[str, Any]]:
    """Arguments of operators that call a collective, by their external id."""
    calls: dict[Hashable, Mapping[str, Any]] = {}
    for event in slices:
        if event.get("name") == COLLECTIVE:
            about = event.get("args") or {}
            if (number := _id(about)) is not None and "Collective name" in about:
                calls[number] = about
    return calls


def _id(about: Mapping[str, Any]) -> Hashable:
    hash(number := about.get("External id"))  # a list is malformed here, not where it is looked up
    return number


def _collective(about: Mapping[str, Any], configured: Mapping[str, ProcessGroup]) -> CollectiveCall:
    operation = about.get("Collective name")
    return CollectiveCall(
        _group(about, configured), None if operation is None else str(operation), _message(about)
    )


def _group(about: Mapping[str, Any], configured: Mapping[str, ProcessGroup]) -> ProcessGroup | None:
    if (name := about.get("Process Group Name")) is None:
        return None
    known = configured.get(str(name), ProcessGroup(str(name), None, None, None))
    description, size = about.get("Process Group Description"), _whole_or_none(about, "Group size")
    return ProcessGroup(
        str(name),
        known.description if description is None else str(description),
        known.size if size is None else size,
        _ranks(about.get("Process Group Ranks")) or known.ranks,
    )


def _configured(about: Mapping[str, Any]) -> ProcessGroup:
    """A group of `pg_config`."""
    description = about.get("pg_desc")
    return ProcessGroup(
        str(about.get("pg_name")),
        None if description is None else str(description),
        _whole_or_none(about, "pg_size"),
        _ranks(about.get("ranks")),
    )


def _ranks(listed: object) -> tuple[int, ...] | None:
    """Ranks of a list, or of its text; none where it is empty or shortened (`[0, 1, ...]`)."""
    if isinstance(listed, str):
        try:
            listed = json.loads(listed)
        except (ValueError, RecursionError):
            return None
    return tuple(map(whole, listed)) if isinstance(listed, list) and listed else None


def _message(about: Mapping[str, Any]) -> float | None:
    """Bytes of the larger of a collective's two buffers; None where the trace does not say."""
    element = BYTES.get(str(about.get("dtype")).lower())
    counts = [about.get(f"{end} msg nelems") for end in ("In", "Out")]
    if element is None or None in counts:
        return None
    return element * max(map(_amount, counts))


# Times and numbers


def _span(event: Mapping[str, Any]) -> tuple[float, float]:
    begin = _number(event["ts"])
    return begin, begin + max(_number(event["dur"]), 0.0)


def _amount(value: Any) -> float:
    if (amount := _number(value)) < 0:
        raise ValueError(f"{value!r} is no size")
    return amount


def _number(value: Any) -> float:
    """A number of microseconds, or of elements; raises `ValueError` beyond all that there are."""
    if not abs(number := float(value)) <= MOST:  # and not >, so that NaN is refused too
        raise ValueError(f"{value!r} is out of bounds")
    return number


def _whole_or_none(about: Mapping[str, Any], name: str) -> int | None:
    return None if (value := about.get(name)) is None else whole(value)


def _argument(event: Mapping[str, Any], name: str) -> Hashable:
    hash(value := (event.get("args") or {}).get(name))
    return value

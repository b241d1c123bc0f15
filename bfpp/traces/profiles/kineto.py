"""Read profiles of torch.profiler, one file a process.

The file is a Chrome trace as Kineto writes it. Its times are microseconds after
`baseTimeNanoseconds`, on the host's clock; here they are seconds. Python's functions are ranges
too, where the profiler recorded stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bfpp.schedules.reading import NO_TIMES, is_execution_trace
from bfpp.traces.profiles.profile import (
    MalformedTrace,
    Profile,
    TracedRange,
    as_launched,
    outermost,
)
from bfpp.traces.timeline.units import SECONDS_PER_MICROSECOND

MOST_SECONDS = 1e12
"""More than there are since any clock's beginning."""

_LAUNCHES = {"cuda_runtime", "cuda_driver"}


def read_kineto(trace: object) -> Profile:
    """The profile of a trace, given as parsed JSON; raises `MalformedTrace`."""
    events = require_events(trace)
    try:
        return _profile(events)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise MalformedTrace(f"an event is malformed: {type(error).__name__} {error}") from None


def require_events(trace: object) -> Mapping[str, Any]:
    """The trace, if it is one of Chrome's; raises `MalformedTrace`."""
    if is_execution_trace(trace):
        raise MalformedTrace(f"is an execution trace of PyTorch, which {NO_TIMES}")
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise MalformedTrace("is not a Chrome trace: it has no list of traceEvents")
    return trace


def _profile(trace: Mapping[str, Any]) -> Profile:
    slices = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    launched = {
        correlation: _seconds(event)
        for event in slices
        if event.get("cat") in _LAUNCHES and (correlation := _correlation(event)) is not None
    }
    flows = (event for event in trace["traceEvents"] if event.get("cat") == "fwdbwd")
    rank = trace.get("distributedInfo", {}).get("rank")
    return Profile(
        rank=None if rank is None else whole(rank),
        base=whole(trace.get("baseTimeNanoseconds", 0)),
        annotations=_ranges(slices, "user_annotation", _seconds),
        functions=_ranges(slices, "python_function", _seconds),
        operators=as_launched(outermost(_ranges(slices, "cpu_op", _seconds))),
        kernels=_ranges(
            slices, "kernel", lambda event: launched.get(_correlation(event), _seconds(event))
        ),
        differentiated=sorted(_seconds(event) for event in flows if event["ph"] == "s"),
    )


def _ranges(
    events: Iterable[Mapping[str, Any]],
    category: str,
    launched: Callable[[Mapping[str, Any]], float],
) -> list[TracedRange]:
    ranges = []
    for event in events:
        if event.get("cat") == category:
            start = _seconds(event)
            end = start + _in_seconds(event["dur"])
            hash(thread := (event["pid"], event["tid"]))  # a list can be no thread
            ranges.append(TracedRange(str(event["name"]), thread, launched(event), start, end))
    return as_launched(ranges)


def _seconds(event: Mapping[str, Any]) -> float:
    return _in_seconds(event["ts"])


def _in_seconds(microseconds: Any) -> float:
    if not abs(seconds := float(microseconds) * SECONDS_PER_MICROSECOND) <= MOST_SECONDS:
        raise ValueError(f"{microseconds!r} is no time in microseconds")
    return seconds


def whole(value: Any) -> int:
    """A whole number of at most 64 bits; raises `ValueError`."""
    if abs(int(value)) >= 2**63:
        raise ValueError("a whole number is of more than 64 bits")
    return int(value)


def _correlation(event: Mapping[str, Any]) -> object:
    return event.get("args", {}).get("correlation")

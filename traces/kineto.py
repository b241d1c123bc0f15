"""What torch.profiler saw of one process.

The file is a Chrome trace as Kineto writes it. Its times are microseconds after
`baseTimeNanoseconds`, on the host's clock; here they are seconds. Python's functions are ranges
too, where the profiler recorded stacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bfpp.traces.recorded import MalformedTrace, Recorded, TracedRange, as_launched, outermost

SECONDS_PER_MICROSECOND = 1e-6

_LAUNCHES = {"cuda_runtime", "cuda_driver"}


def recorded(trace: object) -> Recorded:
    """What a trace holds, as JSON has it; raises `MalformedTrace`."""
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise MalformedTrace("is not a Chrome trace: it has no list of traceEvents")
    try:
        return _recorded(trace)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MalformedTrace(f"an event is malformed: {type(error).__name__} {error}") from None


def _recorded(trace: Mapping[str, Any]) -> Recorded:
    slices = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    launched = {
        correlation: _seconds(event)
        for event in slices
        if event.get("cat") in _LAUNCHES and (correlation := _correlation(event)) is not None
    }
    flows = (event for event in trace["traceEvents"] if event.get("cat") == "fwdbwd")
    rank = trace.get("distributedInfo", {}).get("rank")
    return Recorded(
        rank=None if rank is None else int(rank),
        base=int(trace.get("baseTimeNanoseconds", 0)),
        annotations=_ranges(slices, "user_annotation", _seconds),
        functions=_ranges(slices, "python_function", _seconds),
        operators=as_launched(outermost(_ranges(slices, "cpu_op", _seconds))),
        kernels=_ranges(
            slices, "kernel", lambda event: launched.get(_correlation(event), _seconds(event))
        ),
        kept=sorted(_seconds(event) for event in flows if event["ph"] == "s"),
    )


def _ranges(
    events: Iterable[Mapping[str, Any]],
    category: str,
    launched: Callable[[Mapping[str, Any]], float],
) -> list[TracedRange]:
    found = []
    for event in events:
        if event.get("cat") == category:
            start = _seconds(event)
            end = start + float(event["dur"]) * SECONDS_PER_MICROSECOND
            thread = event["pid"], event["tid"]
            found.append(TracedRange(str(event["name"]), thread, launched(event), start, end))
    return as_launched(found)


def _seconds(event: Mapping[str, Any]) -> float:
    return float(event["ts"]) * SECONDS_PER_MICROSECOND


def _correlation(event: Mapping[str, Any]) -> object:
    return event.get("args", {}).get("correlation")

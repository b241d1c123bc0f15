"""Small traces of torch.profiler with devices, made by hand: kernels, copies, launches, groups."""

from __future__ import annotations

from typing import Any, NamedTuple

from bfpp.traces.profiles.device_profile import ActivityKind

Trace = dict[str, Any]

NAMES = {
    ActivityKind.COMPUTE: ("kernel", "gemm"),
    ActivityKind.COMMUNICATION: ("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
    ActivityKind.COPY: ("gpu_memcpy", "Memcpy DtoD (Device -> Device)"),
}


class Ran(NamedTuple):
    """An activity by its microseconds, and when it was launched, if the trace says so."""

    kind: ActivityKind
    start: float
    end: float
    stream: int = 7
    launched: float | None = None


def event(category: str, name: str, start: float, end: float, **arguments: Any) -> Trace:
    """A slice of a thread of the host, or of what its arguments say."""
    times = {"ts": start, "dur": end - start, "pid": 1, "tid": 1}
    return {"ph": "X", "cat": category, "name": name, "args": arguments, **times}


def events_of(*activities: Ran, **arguments: Any) -> list[Trace]:
    """Events of activities and of their launches; communication has these arguments."""
    events = []
    for number, each in enumerate(activities, 1):
        category, name = NAMES[each.kind]
        more = arguments if each.kind == ActivityKind.COMMUNICATION else {}
        about = {"device": 0, "stream": each.stream, "correlation": number, **more}
        events.append(event(category, name, each.start, each.end, **about))
        if each.launched is not None:
            call = ("cuda_runtime", "cudaLaunchKernel", each.launched, each.launched + 1)
            events.append(event(*call, correlation=number))
    return events


def device_trace(events: list[Trace], **about: Any) -> Trace:
    """A trace; `about` is what it says of its rank and groups."""
    return {"schemaVersion": 1, "distributedInfo": about, "traceEvents": events}

"""Read a trace of `bfpp.traces.formats.perfetto_writing` as a timeline, to the nanosecond."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bfpp.traces.formats.perfetto_writing import GRAPH
from bfpp.traces.formats.timeline_json import MEASURED_ALONE, MalformedTimeline, recorded_timeline
from bfpp.traces.timeline.timeline import Timeline
from bfpp.traces.timeline.units import MICROSECONDS_PER_SECOND


def is_ours(trace: object) -> bool:
    """True for parsed JSON that is such a trace."""
    about = trace.get("otherData") if isinstance(trace, dict) else None
    return isinstance(about, dict) and about.get("generator") == "bfpp"


def read_perfetto(trace: Mapping[str, Any]) -> Timeline:
    """The timeline that a trace holds; raises `MalformedTimeline`."""
    about = dict(trace["otherData"])
    if GRAPH not in trace:
        raise MalformedTimeline("has no task graph: an older version wrote it")
    try:
        slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        first = {event["args"]["task"]: event for event in reversed(slices)}
        events = [first[number] for number in sorted(first)]
        times = {"start": [_seconds(each["ts"]) for each in events]}
        times["end"] = [_seconds(each["ts"] + each["dur"]) for each in events]
        source = [about.pop(name) for name in ("generator", "schedule", "source")][-1]
    except (KeyError, TypeError) as error:
        raise MalformedTimeline(f"is not a trace of bfpp: {type(error).__name__} {error}") from None
    asides = {name: _argument(events, f"{name} (us)") for name in MEASURED_ALONE}
    return recorded_timeline(
        {"source": source, "about": about, "graph": trace[GRAPH], **times, **asides}
    )


def _argument(events: Sequence[Mapping[str, Any]], name: str) -> list[float] | None:
    """A value that each slice has in addition to its times; None unless all have it."""
    if any(name not in each["args"] for each in events):
        return None
    return [_seconds(each["args"][name]) for each in events]


def _seconds(microseconds: float) -> float:
    return microseconds / MICROSECONDS_PER_SECOND

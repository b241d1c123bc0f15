"""What torch.profiler saw of one process: ranges that have names, operators, and kernels.

The file is a Chrome trace as Kineto writes it. Its times are microseconds after
`baseTimeNanoseconds`, on the host's clock; here they are seconds. Python's functions are ranges
too, where the profiler recorded stacks.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from bfpp.schedules import InvalidConfiguration

SECONDS_PER_MICROSECOND = 1e-6
COMMUNICATES = re.compile(r"c10d::|record_param_comms|nccl")
"""Operators and kernels that communicate; all others compute."""

_STEP = re.compile(r"ProfilerStep#(\d+)")
_OPERATORS = {"cpu_op"}
_LAUNCHES = {"cuda_runtime", "cuda_driver"}


class MalformedTrace(InvalidConfiguration):
    """A text that does not hold a trace of torch.profiler; the reason is one line."""

    def __init__(self, reason: str) -> None:
        super().__init__("file", reason)


class Range(NamedTuple):
    """Something that ran; `launched` is when the host began it, where a device ran it."""

    name: str
    thread: object
    launched: float
    start: float
    end: float


@dataclass(frozen=True, eq=False)
class Recorded:
    """One process. All ranges are in the order in which the host began them.

    `annotations` and `functions` have names of their users; `operators` are those that no other
    operator of their thread called; `kept` is when operators began that have a backward pass.
    """

    rank: int | None
    base: int
    annotations: Sequence[Range]
    functions: Sequence[Range]
    operators: Sequence[Range]
    kernels: Sequence[Range]
    kept: Sequence[float]

    @cached_property
    def work(self) -> list[Range]:
        """What computed: kernels, or operators where there was no device."""
        return [it for it in self.kernels or self.operators if not COMMUNICATES.match(it.name)]

    @property
    def steps(self) -> dict[int, Range]:
        """The steps that the profiler was told of, by number."""
        return {int(found[1]): it for it in self.annotations if (found := _STEP.fullmatch(it.name))}

    def during(self, span: Range) -> Recorded:
        """What the host began within a range."""
        return replace(
            self,
            annotations=within(self.annotations, span),
            functions=within(self.functions, span),
            operators=within(self.operators, span),
            kernels=within(self.kernels, span),
            kept=self.kept[bisect_left(self.kept, span.start) : bisect_left(self.kept, span.end)],
        )


def within(ranges: Sequence[Range], span: Range) -> Sequence[Range]:
    """Those that the host began within a range."""
    first, last = (bisect_left(ranges, at, key=_launched) for at in (span.start, span.end))
    return ranges[first:last]


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
        annotations=_ranges(slices, {"user_annotation"}, _seconds),
        functions=_ranges(slices, {"python_function"}, _seconds),
        operators=_ranges(_outermost(slices), _OPERATORS, _seconds),
        kernels=_ranges(
            slices, {"kernel"}, lambda event: launched.get(_correlation(event), _seconds(event))
        ),
        kept=sorted(_seconds(event) for event in flows if event["ph"] == "s"),
    )


def _ranges(
    events: Iterable[Mapping[str, Any]],
    categories: set[str],
    launched: Callable[[Mapping[str, Any]], float],
) -> list[Range]:
    found = []
    for event in events:
        if event.get("cat") in categories:
            start = _seconds(event)
            end = start + float(event["dur"]) * SECONDS_PER_MICROSECOND
            thread = event["pid"], event["tid"]
            found.append(Range(str(event["name"]), thread, launched(event), start, end))
    return sorted(found, key=_launched)


def _outermost(events: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    """The operators that no operator of the same thread called."""
    until: dict[object, float] = {}
    operators = [event for event in events if event.get("cat") in _OPERATORS]
    for event in sorted(operators, key=lambda event: (event["ts"], -event["dur"])):
        thread = event["pid"], event["tid"]
        if event["ts"] >= until.get(thread, float("-inf")):
            until[thread] = event["ts"] + event["dur"]
            yield event


def _launched(it: Range) -> float:
    return it.launched


def _seconds(event: Mapping[str, Any]) -> float:
    return float(event["ts"]) * SECONDS_PER_MICROSECOND


def _correlation(event: Mapping[str, Any]) -> object:
    return event.get("args", {}).get("correlation")

"""Profile of one process, in one form for all profilers: named ranges, operators and kernels.

`bfpp.traces.profiles.kineto` and `bfpp.traces.profiles.nsight` read it from files;
`bfpp.traces.profiles.recognise_passes` recognises the passes in it. Times are seconds on the host's
clock, after `base`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from bfpp.schedules.errors import InvalidFile

COMMUNICATES = re.compile(r"c10d::|record_param_comms|nccl")
"""Operators and kernels that communicate; all others compute."""

STEP = re.compile(r"ProfilerStep#(\d{1,9})|(?:step|iter|iteration)[ _#:]?(\d{1,9})", re.IGNORECASE)
"""A range around a step, with its number."""


LAUNCHED = attrgetter("launched")


class MalformedTrace(InvalidFile):
    """A file that is not as its profiler writes it; the reason is one line."""


class TracedRange(NamedTuple):
    """A named interval of time; `launched` is when the host began it, where a device ran it."""

    name: str
    thread: object
    launched: float
    start: float
    end: float


@dataclass(frozen=True, eq=False)
class Profile:
    """A profile of one process; all ranges are in the order in which the host began them.

    `base` is what times count from, in nanoseconds since 1970. `annotations` and `functions` have
    names of their users; `operators` are those that no other operator of their thread called;
    `differentiated` are the begins of operators that have a backward pass.
    """

    rank: int | None
    base: int
    annotations: Sequence[TracedRange]
    functions: Sequence[TracedRange]
    operators: Sequence[TracedRange]
    kernels: Sequence[TracedRange]
    differentiated: Sequence[float]

    @cached_property
    def work(self) -> list[TracedRange]:
        """Compute: kernels, or operators where there was no device."""
        return [it for it in self.kernels or self.operators if not COMMUNICATES.match(it.name)]

    @property
    def steps(self) -> dict[int, TracedRange]:
        """Ranges around steps, by the step's number."""
        named = ((STEP.fullmatch(it.name), it) for it in self.annotations)
        return {int(match[1] or match[2]): it for match, it in named if match}

    def during(self, span: TracedRange) -> Profile:
        """The part of the profile that the host began within a range."""
        begins = self.differentiated
        first, last = (bisect_left(begins, at) for at in (span.start, span.end))
        return replace(
            self,
            annotations=within(self.annotations, span),
            functions=within(self.functions, span),
            operators=within(self.operators, span),
            kernels=within(self.kernels, span),
            differentiated=begins[first:last],
        )


def within(ranges: Sequence[TracedRange], span: TracedRange) -> Sequence[TracedRange]:
    """Ranges that the host began within a range."""
    first, last = (bisect_left(ranges, at, key=LAUNCHED) for at in (span.start, span.end))
    return ranges[first:last]


def as_launched(ranges: Iterable[TracedRange]) -> list[TracedRange]:
    """Sort ranges by when the host began them."""
    return sorted(ranges, key=LAUNCHED)


def outermost(ranges: Iterable[TracedRange]) -> Iterator[TracedRange]:
    """Ranges that are not inside another one of the same thread."""
    until: dict[object, float] = {}
    for it in sorted(ranges, key=lambda it: (it.start, -it.end)):
        if it.start >= until.get(it.thread, float("-inf")):
            until[it.thread] = it.end
            yield it

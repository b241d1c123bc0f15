"""What a profiler saw of one process, whichever it was: named ranges, operators, and kernels.

`bfpp.traces.kineto` and `bfpp.traces.nsight` read it from files; `bfpp.traces.recognised` finds
the passes in it. Times are seconds on the host's clock, after `base`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from bfpp.schedules.invalid import InvalidFile

COMMUNICATES = re.compile(r"c10d::|record_param_comms|nccl")
"""Operators and kernels that communicate; all others compute."""

STEP = re.compile(r"ProfilerStep#(\d+)|(?:step|iter|iteration)[ _#:]?(\d+)", re.IGNORECASE)
"""A range around a step, with its number."""


class MalformedTrace(InvalidFile):
    """A file that does not hold what its profiler writes; the reason is one line."""


class TracedRange(NamedTuple):
    """Something that ran; `launched` is when the host began it, where a device ran it."""

    name: str
    thread: object
    launched: float
    start: float
    end: float


@dataclass(frozen=True, eq=False)
class Recorded:
    """One process. All ranges are in the order in which the host began them.

    `base` is what times count from, in nanoseconds since 1970. `annotations` and `functions` have
    names of their users; `operators` are those that no other operator of their thread called;
    `kept` is when operators began that have a backward pass.
    """

    rank: int | None
    base: int
    annotations: Sequence[TracedRange]
    functions: Sequence[TracedRange]
    operators: Sequence[TracedRange]
    kernels: Sequence[TracedRange]
    kept: Sequence[float]

    @cached_property
    def work(self) -> list[TracedRange]:
        """What computed: kernels, or operators where there was no device."""
        return [it for it in self.kernels or self.operators if not COMMUNICATES.match(it.name)]

    @property
    def steps(self) -> dict[int, TracedRange]:
        """The steps that have a range, by number."""
        named = ((STEP.fullmatch(it.name), it) for it in self.annotations)
        return {int(found[1] or found[2]): it for found, it in named if found}

    def during(self, span: TracedRange) -> Recorded:
        """What the host began within a range."""
        return replace(
            self,
            annotations=within(self.annotations, span),
            functions=within(self.functions, span),
            operators=within(self.operators, span),
            kernels=within(self.kernels, span),
            kept=self.kept[bisect_left(self.kept, span.start) : bisect_left(self.kept, span.end)],
        )


def within(ranges: Sequence[TracedRange], span: TracedRange) -> Sequence[TracedRange]:
    """Those that the host began within a range."""
    first, last = (bisect_left(ranges, at, key=_launched) for at in (span.start, span.end))
    return ranges[first:last]


def as_launched(ranges: Iterable[TracedRange]) -> list[TracedRange]:
    """In the order in which the host began them."""
    return sorted(ranges, key=_launched)


def outermost(ranges: Iterable[TracedRange]) -> Iterator[TracedRange]:
    """Those that are not inside another one of the same thread."""
    until: dict[object, float] = {}
    for it in sorted(ranges, key=lambda it: (it.start, -it.end)):
        if it.start >= until.get(it.thread, float("-inf")):
            until[it.thread] = it.end
            yield it


def _launched(it: TracedRange) -> float:
    return it.launched

"""Breakdown of the time of a process's devices: compute, communication, copies, idle."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Integers
from bfpp.traces.profiles.device_profile import (
    ActivityKind,
    CollectiveCall,
    DeviceProfile,
    MarkedStep,
)
from bfpp.traces.timeline.intervals import Intervals, union


class TimeParts(NamedTuple):
    """Seconds of a stretch of time; `compute` to `idle` add up to it.

    Communication is exposed where no kernel computes, a copy where no kernel runs at all.
    """

    seconds: float
    compute: float
    exposed_communication: float
    exposed_copies: float
    idle: float
    communication: float
    overlapped_communication: float
    copies: float


class Waiting(NamedTuple):
    """Idle seconds: before the launch of the kernel that ends them, after it, or unknown."""

    for_launch: float | None
    after_launch: float | None
    unknown: float


class Called(NamedTuple):
    """Activities of one name, or collectives of one group, operation and size."""

    number: int
    seconds: float
    exposed: float
    bytes: float | None


class Delays(NamedTuple):
    """Seconds from a call of the host to the start of its kernel.

    `early` counts those that are measured to start before their call, as where clocks differ.
    """

    launches: int
    median: float
    mean: float
    largest: float
    early: int


@dataclass(frozen=True, eq=False)
class Breakdown:
    """The time of the devices of one process."""

    profile: DeviceProfile

    @cached_property
    def compute(self) -> Intervals:
        """Times in which a kernel computes."""
        return self._union(self.profile.of(ActivityKind.COMPUTE))

    @cached_property
    def kernels(self) -> Intervals:
        """Times in which a kernel runs."""
        return self._union(~self.profile.of(ActivityKind.COPY))

    @cached_property
    def busy(self) -> Intervals:
        """Times in which anything runs."""
        return union(self.profile.start, self.profile.end)

    @cached_property
    def window(self) -> tuple[float, float] | None:
        """From the first start to the last end; None where nothing ran on a device."""
        if not len(self.profile):
            return None
        return float(self.profile.start.min()), float(self.profile.end.max())

    @cached_property
    def whole(self) -> TimeParts | None:
        """The whole window."""
        return None if self.window is None else self.parts(*self.window)

    def parts(self, start: float, end: float) -> TimeParts:
        """The parts of a stretch of time."""
        return self.parts_of(Intervals(np.array([start]), np.array([end])))

    def parts_of(self, stretches: Intervals) -> TimeParts:
        """The parts of some stretches of time together."""
        seconds = stretches.length
        compute, kernels, busy, communication, copies = (
            float(each.within(*stretches).sum())
            for each in (self.compute, self.kernels, self.busy, self._communication, self._copies)
        )
        exposed = max(kernels - compute, 0.0)
        return TimeParts(
            seconds=seconds,
            compute=compute,
            exposed_communication=exposed,
            exposed_copies=max(busy - kernels, 0.0),
            idle=max(seconds - busy, 0.0),
            communication=communication,
            overlapped_communication=max(communication - exposed, 0.0),
            copies=copies,
        )

    def by_name(self, kind: ActivityKind) -> dict[str, Called]:
        """Activities of a kind by name, those that take longest first."""
        counted = self._called(self.profile.name, self.profile.of(kind))
        return {self.profile.names[name]: each for name, each in counted}

    @cached_property
    def by_collective(self) -> dict[CollectiveCall, Called]:
        """Communication by group, operation and size, longest first."""
        counted = self._called(self.profile.collective, self.profile.of(ActivityKind.COMMUNICATION))
        return {self.profile.collectives[each]: called for each, called in counted}

    @cached_property
    def by_group(self) -> dict[int, Called]:
        """Communication by the first collective of its group: its place in `collectives`."""
        first: dict[object, int] = {}
        groups = [
            first.setdefault(each.group, place)
            for place, each in enumerate(self.profile.collectives)
        ]
        if not groups:
            return {}
        column = np.array(groups, dtype=np.int32)[self.profile.collective]
        return dict(self._called(column, self.profile.of(ActivityKind.COMMUNICATION)))

    @cached_property
    def by_stream(self) -> dict[str, tuple[int, float, dict[ActivityKind, float]]]:
        """Activities of each stream, its busy seconds, and those of each kind."""
        streams = {}
        for place, name in enumerate(self.profile.streams):
            own = self.profile.stream == place
            kinds = {kind: self._union(own & self.profile.of(kind)).length for kind in ActivityKind}
            streams[name] = int(own.sum()), self._union(own).length, kinds
        return streams

    @cached_property
    def waiting(self) -> Waiting:
        """Idle time, by whether the kernel that ends it had been launched."""
        begin, end = self.busy.end[:-1], self.busy.start[1:]
        order = np.argsort(self.profile.start, kind="stable")
        # The first activity to start after the stretch is the one that ends it.
        next_ = order[np.searchsorted(self.profile.start[order], end)]
        launched = self.profile.launched[next_]
        is_known = ~np.isnan(launched)
        seconds = end - begin
        before = np.clip(launched - begin, 0.0, seconds)[is_known]
        if not is_known.any():
            return Waiting(None, None, float(seconds.sum()))
        return Waiting(
            float(before.sum()),
            float((seconds[is_known] - before).sum()),
            float(seconds[~is_known].sum()),
        )

    @cached_property
    def delays(self) -> Delays | None:
        """Delays of launches, each to the first activity that it launched; None without any."""
        first = self._first_of_launches()
        delay = self.profile.start[first] - self.profile.launched[first]
        early = int((delay < 0).sum())
        delay = delay[delay >= 0]
        if not len(delay):
            return None
        return Delays(
            len(delay), float(np.median(delay)), float(delay.mean()), float(delay.max()), early
        )

    @cached_property
    def steps(self) -> list[tuple[MarkedStep, TimeParts | None]]:
        """Steps, and the devices' time while the host was in them; None if no device was seen."""
        known = self.window is not None
        return [
            (each, self.parts(each.start, each.end) if known else None)
            for each in self.profile.steps
        ]

    @cached_property
    def launched_in_steps(self) -> TimeParts | None:
        """The parts of kernels launched until the last marked step ends, and of no others.

        None where no launch, or no step, is known.
        """
        if not self.profile.steps:
            return None
        last = max(each.end for each in self.profile.steps)
        return Breakdown(self.profile.where(self.profile.launched <= last)).whole

    @cached_property
    def _communication(self) -> Intervals:
        return self._union(self.profile.of(ActivityKind.COMMUNICATION))

    @cached_property
    def _copies(self) -> Intervals:
        return self._union(self.profile.of(ActivityKind.COPY))

    def _union(self, of: Flags) -> Intervals:
        return union(self.profile.start[of], self.profile.end[of])

    def _called(self, column: Integers, of: Flags) -> list[tuple[int, Called]]:
        """Activities counted by a column, with those that take longest first."""
        rows = np.flatnonzero(of)
        rows = rows[np.argsort(column[rows], kind="stable")]
        codes, first = np.unique(column[rows], return_index=True)
        counted = [
            (int(code), self._count(own.astype(np.int32)))
            for code, own in zip(codes, np.split(rows, first)[1:], strict=True)
        ]
        return sorted(counted, key=lambda each: -each[1].seconds)

    def _count(self, own: Integers) -> Called:
        ran = union(self.profile.start[own], self.profile.end[own])
        hidden = float(self.compute.within(*ran).sum())
        sizes = self.profile.bytes[own]
        total = None if np.isnan(sizes).any() else float(sizes.sum())
        return Called(len(own), ran.length, max(ran.length - hidden, 0.0), total)

    def _first_of_launches(self) -> Integers:
        order = np.argsort(self.profile.start, kind="stable")
        launches, first = np.unique(self.profile.launch[order], return_index=True)
        return np.asarray(order[first[launches != NONE]], dtype=np.int32)

"""Profile of the devices of one process: the kernels of their streams, and their launches.

`bfpp.traces.profiles.kineto_activities` and `bfpp.traces.profiles.nsight_activities` read it from
files; `bfpp.traces.kernels` measures it. Times are seconds after the first event of the file. NaN
and `None` are what the file does not say.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Integers, Seconds


class ActivityKind(IntEnum):
    """Purposes of a device's activities."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2

    @property
    def title(self) -> str:
        """Its name in text and JSON."""
        return self.name.lower()


_COMMUNICATES = re.compile(r"(?:void )?\w*(?:nccl|rccl|hccl|oneccl|msccl)\w*", re.IGNORECASE)
_FUSED = re.compile(
    r"deep_ep::|cross_device_reduce|(?:one|two)_shot_all_reduce|multimem_(?:all|one|two)_|nvshmem"
)


def is_communication(name: str) -> bool:
    """True for the name of a kernel of a library of collectives."""
    return _COMMUNICATES.match(name) is not None


def is_fused_communication(name: str) -> bool:
    """True for the name of a known kernel that reads other devices' memory as it computes."""
    return _FUSED.search(name) is not None


class ProcessGroup(NamedTuple):
    """A group of ranks that communicate; only its name is always known."""

    name: str
    description: str | None
    size: int | None
    ranks: tuple[int, ...] | None


class CollectiveCall(NamedTuple):
    """One call of a collective: the group, the operation and the size of its message."""

    group: ProcessGroup | None
    operation: str | None
    bytes: float | None


class MarkedStep(NamedTuple):
    """A step of training as the host marked it."""

    number: int
    start: float
    end: float


@dataclass(frozen=True, eq=False)
class DeviceProfile:
    """Activities of a process's devices, in columns, in no order.

    `name`, `stream` and `collective` are places in `names`, `streams` and `collectives`, or -1.
    `launched` is when the host called for it, `launch` the number of that call: a graph of CUDA
    has one for all its kernels. `host` is when its operators and annotations began and
    ended, `base` the file's time at zero, in seconds.
    """

    source: str
    rank: int | None
    world_size: int | None
    kind: Integers
    name: Integers
    stream: Integers
    collective: Integers
    launch: Integers
    start: Seconds
    end: Seconds
    launched: Seconds
    bytes: Seconds
    names: Sequence[str]
    streams: Sequence[str]
    collectives: Sequence[CollectiveCall]
    steps: Sequence[MarkedStep]
    host: tuple[float, float] | None
    base: float

    def __len__(self) -> int:
        return len(self.start)

    def of(self, kind: ActivityKind) -> Flags:
        """Mask of the activities of a kind."""
        return np.asarray(self.kind == kind)

    def where(self, mask: Flags) -> DeviceProfile:
        """The profile of some activities."""
        return replace(self, **{name: getattr(self, name)[mask] for name in COLUMNS})


COLUMNS = (
    "kind", "name", "stream", "collective", "launch", "start", "end", "launched", "bytes"
)  # fmt: skip


class DeviceActivity(NamedTuple):
    """One activity of a device, as a reader finds it; times in the file's unit."""

    kind: ActivityKind
    name: str
    stream: str
    start: float
    end: float
    correlation: Hashable
    bytes: float | None = None
    collective: CollectiveCall = CollectiveCall(None, None, None)


@dataclass
class Activities:
    """Activities that a reader collects, until they are a profile."""

    rows: list[DeviceActivity] = field(default_factory=list)
    launched: dict[Hashable, float] = field(default_factory=dict)
    steps: list[MarkedStep] = field(default_factory=list)
    host: tuple[float, float] | None = None

    def profile(
        self, source: str, second: float, rank: int | None = None, world_size: int | None = None
    ) -> DeviceProfile:
        """The profile, with times in seconds: a second is so many units of the file."""
        fields: list[Sequence[Any]] = list(zip(*self.rows, strict=True)) or [()] * len(
            DeviceActivity._fields
        )
        columns = dict(zip(DeviceActivity._fields, fields, strict=True))
        launched = [self.launched.get(each, np.nan) for each in columns["correlation"]]
        start, end = (np.array(columns[name], dtype=np.float64) for name in ("start", "end"))
        first = min(start.min(initial=np.inf), self.host[0] if self.host else np.inf)
        first = float(first) if np.isfinite(first) else 0.0
        names, name = _numbered(columns["name"])
        streams, stream = _numbered(columns["stream"])
        collectives, collective = _numbered(columns["collective"])
        _, launch = _numbered(columns["correlation"])
        return DeviceProfile(
            source=source,
            rank=rank,
            world_size=world_size,
            kind=np.array(columns["kind"], dtype=np.int32),
            name=name,
            stream=stream,
            collective=collective,
            launch=np.where(np.isnan(launched), NONE, launch).astype(np.int32),
            start=(start - first) / second,
            end=(end - first) / second,
            launched=(np.array(launched, dtype=np.float64) - first) / second,
            bytes=np.array(columns["bytes"], dtype=np.float64),
            names=names,
            streams=streams,
            collectives=collectives,
            steps=sorted(
                MarkedStep(each.number, (each.start - first) / second, (each.end - first) / second)
                for each in self.steps
            ),
            base=first / second,
            host=self.host and ((self.host[0] - first) / second, (self.host[1] - first) / second),
        )


def _numbered(values: Sequence[Any]) -> tuple[list[Any], Integers]:
    """The different values in order of appearance, and the place of each."""
    places: dict[Any, int] = {}
    numbers = [places.setdefault(each, len(places)) for each in values]
    return list(places), np.array(numbers, dtype=np.int32)

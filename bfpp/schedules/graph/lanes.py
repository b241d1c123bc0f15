"""Lanes: the in-order queues of a rank, and the lane of each task."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.core.lanes import find_lanes
from bfpp.schedules.columns import NONE, Flags, Integers
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.schedules.operations.streams import STREAMS, Stream
from bfpp.schedules.settings.sharding import Communication

KNOWN = 4096
"""Size of the cache of lanes."""


class Lane(NamedTuple):
    """One in-order queue of a rank; `peer` is the rank at a channel's other end."""

    rank: int
    stream: Stream
    peer: int = NONE

    @property
    def title(self) -> str:
        """Its name within its rank: `send gradients to 2`."""
        if self.peer == NONE:
            return self.stream.title
        return f"{self.stream.title} {self.stream.toward} {self.peer}"


def lanes_of_tasks(
    operation: npt.NDArray[np.int8],
    rank: Integers,
    peer: Integers,
    ranks: int,
    communication: Communication,
) -> tuple[tuple[Lane, ...], Integers, Integers]:
    """The lanes in use, and each task's lane and, for transfers, lane at the receiver."""
    streams = streams_of_operations(communication, len(OPERATIONS))
    columns, lane, peer_lane = find_lanes(operation, rank, peer, ranks, streams)
    return lanes_of(columns), lane, peer_lane


def lanes_of(columns: Integers) -> tuple[Lane, ...]:
    """The lanes of which rank, stream and peer are in columns."""
    return _lanes(columns.tobytes())


@cache
def streams_of_operations(
    communication: Communication, operations: int
) -> tuple[Integers, Integers, Flags]:
    """The streams of operations at their rank and at their peer, and which are by peer."""
    both = [each.streams(communication) for each in OPERATIONS[:operations]]
    here, there = np.array([[*map(STREAMS.index, each)] for each in both], dtype=np.int32).T.copy()
    return here, there, np.array([bool(stream.toward) for stream in STREAMS])


@lru_cache(KNOWN)
def _lanes(columns: bytes) -> tuple[Lane, ...]:
    """The lanes of these columns."""
    rows = np.frombuffer(columns, np.int32).reshape(-1, 3).tolist()
    return tuple(Lane(rank, STREAMS[stream], peer) for rank, stream, peer in rows)

"""Lanes: the in-order queues of a rank, and the lane of each task."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import NONE, Integers, Offsets, segment_starts
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.schedules.operations.streams import STREAMS, Stream
from bfpp.schedules.settings.sharding import Communication


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
    operation: npt.NDArray[np.int8], rank: Integers, peer: Integers, communication: Communication
) -> tuple[tuple[Lane, ...], Integers, Integers]:
    """The lanes in use, and each task's lane and, for transfers, lane at the receiver."""
    streams = [each.streams(communication) for each in OPERATIONS]
    here, there = np.array([[*map(STREAMS.index, each)] for each in streams], dtype=np.int32).T
    by_peer = np.array([bool(stream.toward) for stream in STREAMS])
    ranks = int(rank.max()) + 1
    crosses = np.flatnonzero(peer != NONE)
    sender, receiver = rank[crosses], peer[crosses]
    stream, arrives_on = here[operation], there[operation[crosses]]
    lane = _code(rank, stream, np.where(by_peer[stream], peer, 0), ranks)
    received = _code(receiver, arrives_on, np.where(by_peer[arrives_on], sender, 0), ranks)

    codes = np.sort(np.append(lane, received))
    codes = codes[segment_starts(codes)]
    peer_lane = np.full(len(rank), NONE, dtype=np.int32)
    peer_lane[crosses] = np.searchsorted(codes, received)
    of_lanes = np.unravel_index(codes, (ranks, len(STREAMS), ranks))
    lanes = tuple(
        Lane(rank, STREAMS[stream], peer if by_peer[stream] else NONE)
        for rank, stream, peer in zip(*(each.tolist() for each in of_lanes), strict=True)
    )
    return lanes, np.searchsorted(codes, lane).astype(np.int32), peer_lane


def _code(rank: Integers, stream: Integers, peer: Integers, ranks: int) -> Offsets:
    """A number for a lane, in the order of ranks, streams and peers."""
    return (rank.astype(np.int64) * len(STREAMS) + stream) * ranks + peer

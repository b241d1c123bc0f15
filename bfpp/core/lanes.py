"""The lanes of tasks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bfpp.core.library import function

Integers = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


def find_lanes(
    operation: npt.NDArray[np.int8],
    rank: Integers,
    peer: Integers,
    ranks: int,
    streams: tuple[Integers, Integers, Flags],
) -> tuple[Integers, Integers, Integers]:
    """Rank, stream and peer of each lane; each task's lane; and the lane at its peer.

    `streams` are those of operations at their rank and at their peer, and which of all streams
    have a lane for each peer. What there is not is -1.
    """
    stream_of, arrives_on, by_peer = streams
    tasks = len(operation)
    lane, peer_lane = np.empty((2, tasks), dtype=np.int32)
    most = 2 * tasks
    lanes = np.empty((most, 3), dtype=np.int32)
    count = function("find_lanes")(
        tasks, ranks, len(by_peer), len(stream_of), most, operation, rank, peer,
        stream_of, arrives_on, by_peer, lane, peer_lane, lanes,
    )  # fmt: skip
    return lanes[:count].copy(), lane, peer_lane

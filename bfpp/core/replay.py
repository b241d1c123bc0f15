"""Replay of task graphs: when each task starts and ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bfpp.core.library import function

Integers = npt.NDArray[Any]
Seconds = npt.NDArray[np.float64]


def sweep(
    lane: Integers,
    peer_lane: Integers,
    dependency_start: Integers,
    dependency: Integers,
    costs: tuple[Seconds, Seconds, Integers, Seconds],
    lanes: int,
    start: Seconds,
    end: Seconds,
) -> bool:
    """Start each task, in the order of the numbers, as soon as it may; whether flows may meet.

    `costs` are the columns of `Costs`; `start` and `end` are filled, as if each flow had its ports
    to itself: up to the first one that enters a port before those of smaller numbers have left it.
    """
    seconds, size, ports, bandwidth = costs
    return bool(
        function("sweep")(
            len(lane), lanes, len(dependency), ports.shape[1], len(bandwidth),
            lane, peer_lane, dependency_start, dependency, seconds, size, ports, bandwidth,
            start, end,
        )
    )  # fmt: skip


def replay(
    follower_start: Integers,
    follower: Integers,
    costs: tuple[Seconds, Seconds, Integers, Seconds],
    slopes: tuple[Seconds, Seconds, Seconds, Seconds] | None,
    start: Seconds,
    end: Seconds,
) -> None:
    """Replay the tasks, sharing ports between flows.

    `follower` lists, for each task, those that wait for it. `costs` are the columns of
    `Costs`; `slopes` their derivatives (of seconds, bytes, bandwidth) by any number of
    parameters, one a column, and those of `end`, or None. `start` and `end` are filled, and these.
    """
    seconds, size, ports, bandwidth = costs
    parameters = 0 if slopes is None else slopes[0].shape[1]
    seconds_slope, size_slope, bandwidth_slope, end_slope = slopes or (None,) * 4
    function("replay")(
        len(seconds), len(follower), ports.shape[1], len(bandwidth), parameters,
        follower_start, follower, seconds, size, ports, bandwidth,
        seconds_slope, size_slope, bandwidth_slope, start, end, end_slope,
    )  # fmt: skip

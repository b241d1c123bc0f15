"""When each rank computes, how long it only communicates, and how long a step takes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.core.library import function

Integers = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Seconds = npt.NDArray[np.float64]


class RankTimes(NamedTuple):
    """For each rank, the start and end of its compute, and the seconds in which it computes.

    `exposed` are the seconds in which it only communicates, a row for each kind of communication.
    """

    start: Seconds
    end: Seconds
    busy: Seconds
    exposed: Seconds


class StepSums(NamedTuple):
    """The first start, the seconds from there to the last end, and those of all passes."""

    first_start: float
    step_time: float
    pass_seconds: float


def rank_times(
    operation: Integers,
    lane: Integers,
    peer_lane: Integers,
    kind: Integers,
    kinds: int,
    rank_of_lane: Integers,
    ranks: int,
    start: Seconds,
    end: Seconds,
) -> RankTimes:
    """The times of each rank.

    `kind` has which of some `kinds` each operation is of, or -1: communication's, and compute as
    the last one.
    """
    exposed = np.empty((kinds - 1, ranks))
    first_start, last_end, busy = np.empty(ranks), np.empty(ranks), np.empty(ranks)
    function("rank_times")(
        len(operation), len(kind), len(rank_of_lane), ranks, kinds,
        operation, lane, peer_lane, kind, rank_of_lane, start, end,
        first_start, last_end, busy, exposed,
    )  # fmt: skip
    return RankTimes(first_start, last_end, busy, exposed)


def step_sums(start: Seconds, end: Seconds, is_pass: Flags) -> StepSums:
    """The sums of a step's times; `is_pass` marks the tasks that are part of passes."""
    sums = np.empty(3)
    function("step_sums")(len(start), start, end, is_pass, sums)
    return StepSums(*sums.tolist())

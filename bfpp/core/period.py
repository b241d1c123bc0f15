"""The time from step to step, and whether the times within a step repeat."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.core.library import function

Integers = npt.NDArray[Any]
Seconds = npt.NDArray[np.float64]


class Stretch(NamedTuple):
    """A stretch of a step whose times may repeat: begin, end, period and tolerance."""

    begin: float
    until: float
    period: float
    tolerance: float


def period(
    lanes: int,
    ranks: int,
    lane: Integers,
    peer_lane: Integers,
    rank: Integers,
    peer: Integers,
    dependency_start: Integers,
    dependency: Integers,
    duration: Seconds,
) -> float:
    """Seconds from the end of a step to the end of the next, in the long run."""
    seconds = np.empty(1)
    function("period")(
        len(lane), lanes, ranks, len(dependency), lane, peer_lane, rank, peer,
        dependency_start, dependency, duration, seconds,
    )  # fmt: skip
    return float(seconds[0])


def repeats(
    kind: Integers,
    kinds: int,
    dependency_start: Integers,
    dependency: Integers,
    start: Seconds,
    end: Seconds,
    stretch: Stretch,
) -> bool:
    """True if all that starts in a stretch starts and ends again a period later, up to its end.

    And whether nothing under way in the last period, or that a task waits for in it, began before.
    """
    return bool(
        function("repeats")(
            len(kind), kinds, len(dependency), kind, dependency_start, dependency, start, end,
            *stretch,
        )
    )  # fmt: skip

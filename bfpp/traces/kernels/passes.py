"""Forward and backward passes of a rank, and their compute.

A pass lasts from its first to its last kernel: what it waits for in between is a hole in it. Passes
of one operation may overlap on a device, whose time then counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.traces.kernels.breakdown import Breakdown, TimeParts
from bfpp.traces.profiles.recognise_passes import RecognisedPass
from bfpp.traces.timeline.intervals import union


class PassTimes(NamedTuple):
    """The number of passes of one operation, and the parts of their time."""

    passes: int
    parts: TimeParts


def pass_times(
    breakdown: Breakdown, passes: Sequence[RecognisedPass], shift: float
) -> dict[str, PassTimes]:
    """Passes by operation; `shift` is from their clock to the breakdown's."""
    times: dict[str, PassTimes] = {}
    for operation in OPERATIONS:
        own = [it for it in passes if it.operation == operation and it.end > it.start]
        if own:
            times[operation.title] = PassTimes(len(own), parts_within(breakdown, own, shift))
    return times


def parts_within(breakdown: Breakdown, passes: Sequence[RecognisedPass], shift: float) -> TimeParts:
    """The parts of the time in which one of some passes is under way."""
    times = np.array([(it.start, it.end) for it in passes]).reshape(-1, 2) + shift
    return breakdown.parts_of(union(times[:, 0], times[:, 1]))

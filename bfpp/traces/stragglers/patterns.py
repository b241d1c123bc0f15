"""Patterns over steps: which differ from the rest; is slowness persistent, periodic or random."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import comb
from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import Flags, Offsets, Seconds
from bfpp.traces.stragglers.slowdowns import Slowdown, Slowdowns

SLOW = 1.02
"""The slowdown from which on a step counts as slow."""

MOSTLY = 0.75
"""The share of slow steps from which on slowness is persistent."""

DIFFERS = 0.02
"""The share by which a step's time differs from the median of all, at least, to be named."""

DEVIATIONS = 3.5
"""By how many standard deviations, as the median absolute deviation estimates them."""

NORMAL = 1.4826
"""Standard deviation over median absolute deviation, of a normal distribution."""

CHANCE = 0.05
"""The probability up to which equal distances of slow steps are no chance."""


class Recurrence(StrEnum):
    """Spread of slow steps over a job."""

    NONE = "none"
    PERSISTENT = "persistent"
    PERIODIC = "periodic"
    RANDOM = "random"


class Pattern(NamedTuple):
    """Recurrence of slowness: its period in steps, if it has one, and the number of slow steps."""

    recurrence: Recurrence
    period: int | None
    slow_steps: int


class DifferentStep(NamedTuple):
    """A step that differs from the median one by a share of it, and the operation to blame.

    `operation` is the one whose slowdown differs most from its median, in the same direction.
    """

    step: int
    change: float
    operation: str | None


def pattern(slowdown: Slowdown, steps: Sequence[int]) -> Pattern:
    """The pattern of a slowdown, of the steps with these numbers.

    >>> import numpy as np
    >>> pattern(Slowdown(1.05, np.where(np.arange(30) % 10 == 4, 1.5, 1.0)), range(30))
    Pattern(recurrence=<Recurrence.PERIODIC: 'periodic'>, period=10, slow_steps=3)
    """
    slow = slowdown.steps >= SLOW
    count = int(slow.sum())
    if not count:
        return Pattern(Recurrence.NONE, None, 0)
    if count >= MOSTLY * len(slow):
        return Pattern(Recurrence.PERSISTENT, None, count)
    period = _period(slow, np.asarray(steps))
    return Pattern(Recurrence.RANDOM if period is None else Recurrence.PERIODIC, period, count)


def _period(slow: Flags, steps: Offsets) -> int | None:
    """The distance of slow steps, if nearly all at that distance are slow, and it is no chance.

    Chance is that as many random steps have one residue, times the number of residues that there
    are with any distance up to half of the job.
    """
    own = steps[slow]
    period = int(np.gcd.reduce(np.diff(own)))
    if period < 2:
        return None
    alike = steps % period == own[0] % period
    longest = int(steps[-1] - steps[0]) // 2
    tried = longest * (longest + 1) / 2
    chance = comb(int(alike.sum()), len(own)) / comb(len(steps), len(own))
    return period if slow[alike].mean() >= MOSTLY and chance * tried <= CHANCE else None


def different_steps(slowdowns: Slowdowns) -> list[DifferentStep]:
    """Steps that take longer or shorter than the rest, the longest first."""
    replayed = slowdowns.replayed
    median = float(np.median(replayed))
    if median <= 0:
        return []
    change = replayed / median - 1
    usual = NORMAL * float(np.median(np.abs(change)))
    differing = np.flatnonzero(np.abs(change) > max(DIFFERS, DEVIATIONS * usual))
    numbers = [slowdowns.job.table.steps[step] for step in slowdowns.job.steps]
    steps = [
        DifferentStep(
            numbers[place], float(change[place]), _operation_of(slowdowns, place, change[place])
        )
        for place in differing.tolist()
    ]
    return sorted(steps, key=lambda each: -each.change)


def _operation_of(slowdowns: Slowdowns, place: int, change: float) -> str | None:
    """The operation whose slowdown in a step differs most from its median, as the step does."""
    by: dict[str, Seconds] = {
        name: each.steps for name, each in slowdowns.by_operation.items() if each.mean is not None
    }
    differs = {
        name: np.sign(change) * float(steps[place] - np.median(steps)) for name, steps in by.items()
    }
    name = max(differs, key=lambda each: differs[each])
    return name if differs[name] > 0 else None

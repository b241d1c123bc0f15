"""The gain of a remedy: the steps with it against the same steps without."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import Seconds

WITHIN = (0.05, 0.95)
"""Quantiles of steps between which a gain is said to be."""


class Remedy(NamedTuple):
    """A remedy by name, its change in words, and the mean step with it.

    `gain` is the share of the mean step that it saves, for as much work; 90 % of steps save
    between `low` and `high`. None where that cannot be told: of one step, there is no interval.

    >>> import bfpp
    >>> slow = bfpp.Experiment("1f1b", pp=2, dp=2, microbatches=4, slow="rank=1,replica=1:1.5")
    >>> [best] = [each for each in bfpp.explain(slow).remedies if each.name == "replace"]
    >>> best.change, round(best.gain, 3)
    ('devices at rank=1,replica=1 as fast as the others', 0.286)
    """

    name: str
    change: str
    step_time: float | None = None
    gain: float | None = None
    low: float | None = None
    high: float | None = None


class TriedRemedy(NamedTuple):
    """A remedy by name, its change in words, and seconds of the steps with it (None: not known)."""

    name: str
    change: str
    steps: Seconds | None


def gained(tried: TriedRemedy, before: Seconds) -> Remedy:
    """A remedy with its gain, given seconds of the same steps without it.

    >>> import numpy as np
    >>> gained(TriedRemedy("balance", "...", np.array([3.0])), np.array([4.0]))
    Remedy(name='balance', change='...', step_time=3.0, gain=0.25, low=None, high=None)
    """
    name, change, after = tried
    if after is None or not (before > 0).all():
        return Remedy(name, change)
    step_time = float(after.mean())
    gain = 1 - step_time / float(before.mean())
    if len(before) == 1:
        return Remedy(name, change, step_time, gain)
    low, high = np.quantile(1 - after / before, WITHIN).tolist()
    return Remedy(name, change, step_time, gain, low, high)


def by_gain(remedies: list[Remedy]) -> list[Remedy]:
    """The largest gain first, those that cannot be told last."""
    return sorted(remedies, key=lambda each: (each.gain is None, -(each.gain or 0.0)))

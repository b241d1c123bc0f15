"""Means with intervals, and agreement of two rankings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

CONFIDENCE = 0.95


class MeanInterval(NamedTuple):
    """A mean, and where it is with a probability of `CONFIDENCE`; the same bounds of one value."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float]) -> MeanInterval:
    """Student's interval of the mean of independent values."""
    from scipy.special import stdtrit  # start-up time

    mean, count = fmean(values), len(values)
    if count == 1:
        return MeanInterval(mean, mean, mean)
    quantile = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    half = quantile * stdev(values) / math.sqrt(count)
    return MeanInterval(mean, mean - half, mean + half)


def rank_agreement(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings: 1 if they agree, -1 if one is the other's reverse.

    None where it is not defined: of fewer than two, or if all are equal.
    """
    from scipy.stats import kendalltau  # start-up time

    if len(one) < 2:
        return None
    tau = float(kendalltau(one, other).statistic)
    return None if math.isnan(tau) else tau

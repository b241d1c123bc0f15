"""Seconds as sums of costs: least squares of relative errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls


@dataclass(frozen=True)
class Line:
    """Seconds as a straight line over an amount."""

    fixed: float
    slope: float


def least_squares(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Non-negative cost of each column, where a row costs the sum of its columns."""
    table, target = np.array(rows), np.array(seconds)
    weights = 1 / np.maximum(target, 1e-9)  # no clock here resolves less than a nanosecond
    solution, _ = nnls(table * weights[:, None], target * weights)
    costs: list[float] = solution.tolist()
    return costs


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """The straight line through seconds over amounts that has the least relative errors."""
    fixed, slope = least_squares(
        [(1.0, amount) for amount, _ in points], [seconds for _, seconds in points]
    )
    return Line(fixed, max(slope, 1e-15))  # a bandwidth is its inverse

"""Least squares without scipy, for a few constants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

STEPS = 50
"""More than are needed."""

SMALL, LARGE = 1e-6, 2.0
"""Changes of a logarithm: that at which the search ends, and the most that is tried at once."""


INFLUENCE = 1e-3
"""What an e-fold of a constant changes, at least, in a residual that depends on it."""


def least_squares(
    residuals: Callable[[Numbers], Numbers], start: Numbers
) -> tuple[Numbers, Numbers]:
    """Where the residuals' squares have the least sum, and the standard error of each place.

    By Levenberg's and Marquardt's steps; errors by the sandwich estimator, which does not
    take all residuals to scatter alike. Infinite is that of what they hardly depend on.
    """
    at, damping = start, 1e-3
    found = residuals(at)
    for _ in range(STEPS):
        slopes = _slopes(residuals, at, found)
        square = slopes.T @ slopes
        step = -np.linalg.pinv(square + damping * np.diag(square.diagonal())) @ slopes.T @ found
        step = step.clip(-LARGE, LARGE)
        tried = residuals(at + step)
        if tried @ tried > found @ found:
            damping *= 10
            continue
        at, found, damping = at + step, tried, damping / 10
        if np.abs(step).max() < SMALL:
            break
    slopes = _slopes(residuals, at, found)
    inverse = np.linalg.pinv(slopes.T @ slopes)
    weighed = slopes * found[:, None]
    freedom = len(found) / max(len(found) - len(at), 1)
    covariance = freedom * inverse @ weighed.T @ weighed @ inverse
    depends = np.abs(slopes).max(axis=0) > INFLUENCE
    return at, np.where(depends, np.sqrt(covariance.diagonal()), np.inf)


def _slopes(residuals: Callable[[Numbers], Numbers], at: Numbers, found: Numbers) -> Numbers:
    step = 1e-6
    columns = [(residuals(at + step * each) - found) / step for each in np.eye(len(at))]
    slopes: Numbers = np.stack(columns, axis=1)
    return slopes

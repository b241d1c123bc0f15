"""Least squares without scipy, for a few constants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

STEPS = 50
"""Iterations, at most; fits end sooner."""

SMALL, LARGE = 1e-6, 2.0
"""Steps of a logarithm: the search ends at one below the first; none is above the second."""


def least_squares(
    residuals: Callable[[Numbers], Numbers], start: Numbers
) -> tuple[Numbers, Numbers]:
    """The parameters with the least sum of squared residuals, and their standard errors.

    Levenberg-Marquardt. Standard errors are by the sandwich estimator, which allows residuals of
    different variance; that of a parameter on which no residual depends is infinite.
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
    depends = np.abs(slopes).max(axis=0) > 0
    return at, np.where(depends, np.sqrt(covariance.diagonal()), np.inf)


def _slopes(residuals: Callable[[Numbers], Numbers], at: Numbers, found: Numbers) -> Numbers:
    step = 1e-6
    columns = [(residuals(at + step * each) - found) / step for each in np.eye(len(at))]
    slopes: Numbers = np.stack(columns, axis=1)
    return slopes

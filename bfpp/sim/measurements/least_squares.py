"""Least squares of a few constants, and how sure each of them is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]

INFLUENCE = 1e-3
"""The least change of a dependent residual by an e-fold of a constant."""


def least_squares(
    residuals: Callable[[Numbers], Numbers], start: Numbers
) -> tuple[Numbers, Numbers]:
    """The parameters with the least sum of squared residuals, and their standard errors.

    Standard errors are by the sandwich estimator, which allows residuals of different variance;
    that of a parameter on which hardly any residual depends is infinite.
    """
    from scipy.optimize import least_squares as solved  # half a second, for those who fit

    solution = solved(residuals, start)
    inverse = np.linalg.pinv(solution.jac.T @ solution.jac)
    weighed = solution.jac * solution.fun[:, None]
    freedom = len(solution.fun) / max(len(solution.fun) - len(start), 1)
    covariance = freedom * inverse @ weighed.T @ weighed @ inverse
    depends = np.abs(solution.jac).max(axis=0) > INFLUENCE
    return solution.x, np.where(depends, np.sqrt(covariance.diagonal()), np.inf)

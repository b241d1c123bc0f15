"""Arrays as nobody should give them to the compiled core: with wrong numbers in some places."""

from __future__ import annotations

import numpy as np

WRONG_NUMBERS = -(2**31), -2, -1, 0, 1, 7, 10**6, 2**31 - 1
WRONG_SECONDS = np.nan, np.inf, -np.inf, -1.0, 0.0, 1e300, 5e-324


def spoilt(random: np.random.Generator, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Copies of arrays, some entries of which are no index, or no time."""
    found = [array.copy() for array in arrays]
    for _ in range(random.integers(1, 4)):
        array = found[random.integers(len(found))].reshape(-1)
        if not array.size:
            continue
        wrong = random.choice(WRONG_SECONDS if array.dtype == np.float64 else WRONG_NUMBERS)
        if array.dtype == np.int8:
            wrong = int(wrong) % 256 - 128
        array[random.integers(array.size)] = bool(wrong) if array.dtype == np.bool_ else wrong
    return found

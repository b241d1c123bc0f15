"""A few rows of a product in which any two values still meet, as they do in all of them.

What breaks in one pair of settings breaks in one of these rows; what takes three at once may not:
the whole product is for tests that are `slow`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import combinations
from typing import TypeVar

import numpy as np

Row = TypeVar("Row", bound=tuple[Hashable, ...])


def covering(rows: Iterable[Row]) -> list[Row]:
    """Of these rows, one after another that whose pairs were met least, until all were met."""
    rows, number = list(rows), dict[Hashable, int]()
    pairs = np.array(
        [
            [
                number.setdefault((one, other, row[one], row[other]), len(number))
                for one, other in combinations(range(len(row)), 2)
            ]
            for row in rows
        ]
    )
    worth = np.ones(len(number))
    chosen = []
    while (worth == 1).any():
        best = int(worth[pairs].sum(axis=1).argmax())
        worth[pairs[best]] /= 100
        chosen.append(rows[best])
    return chosen

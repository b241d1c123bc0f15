"""Building blocks: the passes of one micro-batch, placed so that they can repeat every period."""

from __future__ import annotations

from bfpp.core.library import function
from bfpp.core.synthesis.ordering_problem import ProblemArrays, Seconds


def place_block(
    problem: ProblemArrays,
    period: float,
    delay: Seconds,
    tries: int,
    scale: float,
    seed: int,
    start: Seconds,
) -> bool:
    """Place the passes of one micro-batch so that they can repeat every period.

    So many tries vary how long each pass waits beyond what it must, `delay`, by about `scale`, a
    typical time of a pass, until ranks keep no more than their limits; the same seed varies it
    alike. Fills `delay` and the `start` of each pass; returns whether the limits are kept to.
    """
    return bool(function("place_block")(*problem, period, tries, scale, seed, delay, start))

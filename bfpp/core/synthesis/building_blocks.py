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

    Up to `tries` times, the extra wait of each pass, `delay`, is varied by about `scale`, a typical
    time of a pass, until ranks keep to their memory limits; the same seed gives the same block.
    Fills `delay` and the `start` of each pass; returns whether the limits are kept to.
    """
    return bool(function("place_block")(*problem, period, tries, scale, seed, delay, start))

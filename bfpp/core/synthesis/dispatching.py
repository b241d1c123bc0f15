"""Orders by a rule in numbers, which is varied."""

from __future__ import annotations

import numpy as np

from bfpp.core.library import function
from bfpp.core.synthesis.ordering_problem import Codes, ProblemArrays, Seconds

PACES = 2
"""Numbers of a rule that say when the next forward pass of the first stage may start."""


def dispatch(
    problem: ProblemArrays, rule: Seconds, words: Codes, tries: int, scale: float, seed: int
) -> float:
    """Each rank in turn runs the pass of the least start, times patience, less key.

    The `rule` holds the key of each pass; the patience of each rank; what each stage's forward
    pass leaves free of its rank's limit; and how long after one forward pass of the first stage
    the next may start, and how long after its rank last had more room. It is varied `tries`
    times, by steps of about `scale`, a typical time of a pass; the same seed varies it alike.

    Leaves the best rule and the words by it there. Returns how long these take, infinite where
    passes wait for room for ever, by all rules.
    """
    taken = np.zeros(1)
    function("dispatch")(*problem, tries, scale, seed, words.shape[1], rule, words, taken)
    return float(taken[0])

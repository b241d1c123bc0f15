"""Durations of words of passes, and shorter words by simulated annealing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bfpp.core.library import function
from bfpp.core.synthesis.ordering_problem import Codes, ProblemArrays, Seconds

Lengths = npt.NDArray[np.int64]


def replay_words(problem: ProblemArrays, words: Codes, lengths: Lengths, start: Seconds) -> float:
    """Durations of words, infinite where they cannot run; fills when each pass starts.

    `words` has a row for each rank, of which as many are passes as `lengths` says.
    """
    taken = np.zeros(1)
    function("replay_words")(*problem, words.shape[1], words, lengths, start, taken)
    return float(taken[0])


def anneal(
    problem: ProblemArrays,
    words: Codes,
    lengths: Lengths,
    steps: int,
    hot: float,
    cold: float,
    seed: int,
) -> float:
    """Duration of the best words, which are left in `words`.

    Each of the steps moves a pass of the critical path along its rank's word, within the limits.
    What is slower is kept with a chance that falls with the temperature, in seconds, from `hot` to
    `cold`. The same seed finds the same words.
    """
    taken = np.zeros(1)
    width = words.shape[1]
    function("anneal")(*problem, width, words, lengths, steps, hot, cold, seed, taken)
    return float(taken[0])

"""Arrays of the problem of ordering passes, which annealing, dispatches and building blocks share.

A pass is a number, its code: kind * stages + stage, of kinds forward (0), backward or its input
half (1), and weight half (2, where backward passes are split). A rank's *word* holds the codes of
its passes in order; the micro-batches of each pass are first come, first served.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int32]
Seconds = npt.NDArray[np.float64]


class ProblemArrays(NamedTuple):
    """The problem, in the order in which functions of the core take it.

    By pass: its rank, and its seconds. By pass but weight halves: the seconds of sending its
    output, and on which channel, NONE where nothing is sent; one channel sends one after the other,
    and channels have numbers below 2 * stages. By stage: what it keeps of a micro-batch until its
    last backward pass. By rank: the most that it may keep, and how long it is busy after its last
    pass. The stages of rank r are `stage[first[r] : first[r + 1]]`.

    The time of words is until no rank is busy; or, of `spans`, the longest of a rank's own.
    """

    stages: int
    ranks: int
    kinds: int
    microbatches: int
    spans: bool
    rank: Codes
    seconds: Seconds
    transfer: Seconds
    channel: Codes
    size: Seconds
    limit: Seconds
    rest: Seconds
    stage: Codes
    first: Codes

"""Building blocks: the passes of one micro-batch, placed so that they can repeat every period.

After "Pipeline Parallelism with Controllable Memory" (Qi et al., 2024): each micro-batch does what
the one before it did, one period later. The passes of different micro-batches must not overlap on
a rank, so each pass occupies its rank at its start modulo the period; what a rank keeps follows
from how many periods each stage's activations live. A block is searched for one micro-batch,
whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np

from bfpp.core.synthesis.building_blocks import place_block
from bfpp.schedules.columns import Seconds
from bfpp.sim.synthesis.problem.problem import OrderingProblem, Words
from bfpp.sim.synthesis.search.annealing import replayed

PLACED = 100_000
"""Passes to place for each period that is tried."""

PERIODS = 12
"""Periods to try from each of the seeds."""

SEEDS = 3

GROWTH = 1.5
"""Factor by which a period is lengthened while no block fits."""


def repeated_blocks(problem: OrderingProblem) -> list[Words]:
    """Words of repeated blocks within the limits, from each seed those that take the least time.

    That need not be the block of the shortest period: a longer one may ramp up and down faster.
    """
    if not problem.has_room.all():
        return []
    best = []
    for seed in range(SEEDS):
        within = (words for words in _of_seed(problem, seed) if problem.within(words))
        if words := min(within, key=lambda words: replayed(problem, words), default=None):
            best.append(words)
    return best


def _of_seed(problem: OrderingProblem, seed: int) -> Iterator[Words]:
    """Words by period: the work of the busiest rank if that will do, else it is bisected."""
    low = period = float((problem.held @ problem.seconds.sum(axis=0)).max())
    high = inf
    scale, codes = float(problem.seconds.mean()), problem.seconds.size
    delay, start = np.zeros(codes), np.zeros(codes)
    tries = PLACED // codes + 1
    for turn in range(PERIODS):
        trial = SEEDS * turn + seed
        if place_block(problem.arrays, period, delay, tries, scale, trial, start):
            yield _repeated(problem, start, period)
            if not turn:
                return
            high = period
        else:
            low = period
        period = GROWTH * low if high == inf else (low + high) / 2


def _repeated(problem: OrderingProblem, start: Seconds, period: float) -> Words:
    """The words of all micro-batches, each a period after the one before."""
    later = period * np.arange(problem.microbatches)
    words = []
    for rank in range(problem.layout.pp):
        codes = np.flatnonzero(problem.arrays.rank == rank)
        times = (start[codes, None] + later).ravel()
        order = np.argsort(times, kind="stable")
        words.append(np.repeat(codes, problem.microbatches)[order].tolist())
    return words

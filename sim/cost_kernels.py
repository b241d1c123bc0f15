"""What tasks cost each other, and their ranks, as loops like those of `bfpp.sim.kernels`."""

from __future__ import annotations

import numpy as np


def lengthen(kind, dependency_start, dependency, received, sent, seconds):
    """Add, to the seconds of each task, what kinds of transfers that it receives or sends cost it.

    Other kinds cost nothing.
    """
    for task in range(len(kind)):
        for at in range(dependency_start[task], dependency_start[task + 1]):
            on = dependency[at]
            seconds[task] += received[kind[on]]
            seconds[on] += sent[kind[task]]


def busiest(rank, chosen, seconds, ranks):
    """The seconds of the chosen tasks of the rank that has most."""
    total = np.zeros(ranks)
    for task in range(len(rank)):
        if chosen[task]:
            total[rank[task]] += seconds[task]
    return total.max()

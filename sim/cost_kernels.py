"""What transfers cost the steps at their ends, as a loop like those of `bfpp.sim.kernels`."""

from __future__ import annotations


def lengthen(kind, dependency_start, dependency, received, sent, seconds):
    """Add, to the seconds of each task, what kinds of transfers that it receives or sends cost it.

    Other kinds cost nothing.
    """
    for task in range(len(kind)):
        for at in range(dependency_start[task], dependency_start[task + 1]):
            on = dependency[at]
            seconds[task] += received[kind[on]]
            seconds[on] += sent[kind[task]]

"""The loops that place the passes of a building block, over arrays, as numba compiles them.

Passes are numbered as in `kernels`. A block has the `start` of each pass of one micro-batch.
"""

from __future__ import annotations

from math import exp, floor, inf

import numpy as np

from bfpp.sim.synthesis.loops.kernels import compiled

TOLERANCE = 1e-9
"""Of a period."""


@compiled
def settle(problem, period, delay, tries, scale, seed, start):
    """Vary how long passes wait beyond what they must, until the block keeps to the limits.

    `scale` is a typical time of a pass. Leaves the block's starts and delays there; returns
    whether it keeps to the limits.
    """
    np.random.seed(seed)
    codes = len(delay)
    trial, known = np.empty(codes), inf
    for each in range(tries):
        new = delay.copy()
        if each:
            for _ in range(1 + np.random.randint(3)):
                code = np.random.randint(codes)
                what = np.random.random()
                if what < 0.4:
                    new[code] = 0.0
                elif what < 0.8:
                    new[code] = max(0.0, new[code] + scale * np.random.normal())
                else:
                    new[code] = 2 * scale * np.random.random()
        if not place(problem, period, new, trial):
            continue
        over, kept = excess(problem, period, trial)
        # Of blocks that keep too much, those whose activations live shorter are nearer to the goal.
        cost = over + 1e-3 * kept
        heat = 0.02 * (1 - each / tries)
        if cost <= known or np.random.random() < exp((known - cost) / heat):
            known = cost
            for code in range(codes):
                delay[code], start[code] = new[code], trial[code]
            if over == 0:
                return True
    return False


@compiled
def place(problem, period, delay, start):
    """Place the passes of a micro-batch along the stages and back, then its weight halves.

    Each starts as soon as its rank is free in every period, after its delay. Returns whether all
    have a place.
    """
    stages, codes = len(problem.size), len(delay)
    for code in range(codes):
        start[code] = -1.0
    code, ready = 0, 0.0
    for step in range(codes):
        if step >= 2 * stages:
            code = step
            ready = start[code - stages] + problem.seconds[code - stages]
        start[code] = free_from(problem, period, start, code, ready + delay[code])
        if start[code] == inf:
            return False
        ready = start[code] + problem.seconds[code] + problem.arrival[code]
        code = problem.after[code]
    return True


@compiled
def free_from(problem, period, start, code, ready):
    """When the rank of a pass has room for it in every period, from when it is ready; or never."""
    here, codes, stages = problem.rank[code], len(start), len(problem.size)
    tolerance = TOLERANCE * period
    begin, moved = ready, True
    while moved:
        moved = False
        for at in range(problem.first[here], problem.first[here + 1]):
            for other in range(problem.stage[at], codes, stages):
                if start[other] < 0:
                    continue
                since = (begin - start[other]) % period
                if since > period - tolerance:
                    since = 0.0
                busy = problem.seconds[other] - since
                if busy > tolerance:
                    begin += busy
                    moved = True
                elif since + problem.seconds[code] > period + tolerance:
                    begin += period + busy
                    moved = True
        if begin > ready + period:
            return inf
    return begin


@compiled
def excess(problem, period, start):
    """How much all ranks keep beyond their limits, and on average, in stages of mean size."""
    stages, last = len(problem.size), (problem.kinds - 1) * len(problem.size)
    mean = max(problem.size.sum() / stages, 1e-300)
    over, kept = 0.0, 0.0
    for here in range(len(problem.limit)):
        most = 0.0
        for at in range(problem.first[here], problem.first[here + 1]):
            time, now = start[problem.stage[at]], 0.0
            for other in range(problem.first[here], problem.first[here + 1]):
                stage = problem.stage[other]
                end = start[last + stage] + problem.seconds[last + stage]
                begun = floor((time - start[stage]) / period + TOLERANCE)
                ended = floor((time - end) / period + TOLERANCE)
                now += problem.size[stage] * (begun - ended)
                if other == at:
                    kept += problem.size[stage] * (end - start[stage]) / period
            most = max(most, now)
        over += max(0.0, most - problem.limit[here])
    return over / mean, kept / mean

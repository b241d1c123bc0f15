"""The power limit of a device: no more than a share of the peak is sustained over a step.

A device that waits, for others or for the network, draws little power and runs
the faster afterwards. So it is the mean over a step that is limited: where a
step would be faster, clocks fall until it is not. The host, which dispatches
tasks, limits a step in the same way: it gets ahead while the device runs long
tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bfpp.schedules import TaskGraph
from bfpp.schedules.precision import Format
from bfpp.sim import cost_kernels
from bfpp.sim.cluster import Device
from bfpp.sim.compiled_engine import Times, times
from bfpp.sim.compiling import WORK
from bfpp.sim.costs import Costs

TOLERANCE = 0.002
"""Share of what the limit asks for from which on what is missing is made up without a replay."""


def least_seconds(device: Device, flops: float, narrow: Format | None = None) -> float:
    """The least seconds in which the power limit allows this many operations (flop).

    Those of narrow operands take less power, in proportion to their higher peak.
    """
    peak = device.peak if narrow is None else device.peak_of(narrow)
    return flops / (peak * device.sustained_efficiency)


class WithinPower(NamedTuple):
    """Costs at which the power limit is kept, and when tasks start and end at them, if known."""

    costs: Costs
    times: Times | None


def within_power(
    graph: TaskGraph, costs: Costs, least: float, step_seconds: Callable[[Times], float]
) -> WithinPower:
    """The costs at clocks so low that the step takes `least` seconds, if it takes fewer.

    All compute is slower by one factor. It is approached from below: were communication as
    much slower too, the step would take as many times as long. Where the busiest rank computes
    for long enough anyhow, nothing is replayed to know. `step_seconds` says how long times take.
    """
    steps = graph.is_compute
    fastest = costs.seconds
    loop = WORK.loop(cost_kernels, "busiest", len(graph))
    busiest = loop(graph.rank, steps, fastest, graph.layout.pp)
    factor, missing = 1.0, least
    while busiest * factor < least and missing > TOLERANCE * least:
        found = times(graph, costs)
        taken = step_seconds(found)
        missing = least - taken
        if missing <= 0:
            return WithinPower(costs, found)
        factor *= least / taken
        costs = replace(costs, seconds=np.where(steps, fastest * factor, fastest))
    return WithinPower(costs, None)

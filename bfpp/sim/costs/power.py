"""The power limit of a device: no more than a share of the peak is sustained over a step.

Theory of operation. A device that waits, for others or for the network, draws little power and runs
the faster afterwards. So the mean over a step is limited, not each pass:

    step >= flops / (peak * sustained_efficiency)

Where a step would be faster, all its compute is slowed by one factor, as lower clocks do, until it
is not; communication keeps its speed. The factor is raised by `least / taken` and the graph
replayed: were communication slowed as well, the step would be longer by exactly that, so it is
approached from below and never passed. When the busiest rank's compute alone reaches the least
seconds, or less than `TOLERANCE` of it is missing, no replay is needed to know.

The host, which dispatches tasks, limits a step in the same way: it gets ahead while the device runs
long tasks.

Rejected: a limit on each pass of each layer, which predicts worse (in docs/costs.md's
cross-validation 3.0 % instead of 2.4 % mean error, 5.0 % instead of 3.4 % left out).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bfpp.core.prices import busiest
from bfpp.schedules import TaskGraph
from bfpp.schedules.settings.precision import Format
from bfpp.sim.cluster.cluster import Device
from bfpp.sim.engines.compiled_engine import Times, last_end, times
from bfpp.sim.engines.cost_model import Costs

TOLERANCE = 0.002
"""A shortfall of up to this share of the limit's time is made up without another replay."""


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


def within_power(graph: TaskGraph, costs: Costs, least: float) -> WithinPower:
    """The costs at clocks so low that the step takes `least` seconds, if it takes fewer.

    All compute is slower by one factor. It is approached from below: were communication as
    much slower too, the step would take as many times as long. Where the busiest rank computes
    for long enough anyhow, nothing is replayed to know.

    The core does the same without a timeline (`bfpp/core/source/step.c`).
    """
    steps = graph.is_compute
    fastest = costs.seconds
    longest = busiest(graph.rank, steps, fastest, graph.layout.pp)
    factor, missing = 1.0, least
    while 0 < longest * factor < least and missing > TOLERANCE * least:
        times_at_full_power = times(graph, costs)
        taken = last_end(times_at_full_power)
        missing = least - taken
        if missing <= 0:
            return WithinPower(costs, times_at_full_power)
        factor *= least / taken
        costs = replace(costs, seconds=np.where(steps, fastest * factor, fastest))
    return WithinPower(costs, None)

"""The slowest of many devices, for which all others wait.

Theory of operation. Devices of one kind are not equally fast (power, temperature, silicon), and no
device takes equally long for the same pass. What synchronises takes as long as its slowest member:
of n normal deviations the expected largest, for which Blom (1958) gives the quantile at
(n - 3/8) / (n + 1/4). So one factor on all passes stands for the wait, and the graph stays that of
one replica with ranks that are alike.

- All of a job's devices wait for the slowest of them: over gradients once a step, over a pipeline
  for each micro-batch. Its own pace does not average out (`speed_deviation`).
- Passes of the same work differ from one to the next (`pass_deviation`). Those of a step average
  out, except on devices that wait for each other inside of passes: the members of tensor-, context-
  and expert-parallel groups, and, fully sharded, all that a layer's weights are gathered from.

Rejected: devices drawn at random, and every one of them simulated. A prediction would differ from
the next by the seed, and take as long as there are replicas.
"""

from __future__ import annotations

from functools import cache
from math import hypot
from statistics import NormalDist

from bfpp.schedules import Degrees
from bfpp.sim.cluster.cluster import Cluster

NEIGHBOURS = 3
"""Ranks of a pipeline that wait for each other in each micro-batch: one, and those at its sides."""


@cache
def expected_largest(members: int) -> float:
    """The expected largest of so many standard normal numbers (Blom, 1958), within 0.03."""
    return NormalDist().inv_cdf((members - 0.375) / (members + 0.25))


def waiting_factor(cluster: Cluster, degrees: Degrees, *, fully_sharded: bool) -> float:
    """Factor of a pass's seconds on the slowest of all devices to those on a mean one."""
    device = cluster.device
    lasting = device.speed_deviation * expected_largest(degrees.devices)
    passing = device.pass_deviation * expected_largest(_together(degrees, fully_sharded))
    of_site = 1.0 if cluster.site is None else cluster.site.factor
    # Independent deviations add up as squares; a sum would have one device be the worst of both.
    return of_site * (1.0 + hypot(lasting, passing))


def _together(degrees: Degrees, fully_sharded: bool) -> int:
    """Devices with other tokens that a device waits for in each pass."""
    sharing = degrees.dp_shard if fully_sharded else 1
    return max(sharing * degrees.cp, degrees.ep, min(degrees.pp, NEIGHBOURS))

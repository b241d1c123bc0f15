"""The ports that flows pass between pipeline ranks, and the waits of transfers.

Rules:

- Each pipeline rank has two ports for each level of the network, out and in: its GPU's, or its
  share of those that several have. A transfer passes the sender's ports out and the receiver's in,
  of the outermost level that it crosses and of those on the way there.
- A transfer is between groups of tensor-parallel devices. One that blocks also waits, in addition
  to latency and bytes, until all devices of both groups have arrived: longer with each doubling.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log2

import numpy as np

from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.placement import DevicePlacement
from bfpp.sim.cluster.software_profiles import Implementation
from bfpp.sim.engines.cost_model import narrowest

PAIR = 2
"""Devices at the two ends of a transfer."""


@dataclass(frozen=True, eq=False)
class Routes:
    """The routes between pipeline ranks, whichever stages they hold."""

    cluster: Cluster
    implementation: Implementation
    placement: DevicePlacement

    @property
    def width(self) -> int:
        """Ports that a flow passes at most: out and in, of each level."""
        return 2 * int(self._passed.shape[1])

    @cached_property
    def of_transfers(self) -> tuple[Seconds, Integers]:
        """From each rank to each, until a transfer's bytes move, and their ports.

        By the outermost level that it crosses.
        """
        levels, degrees = self.cluster.levels, self.placement.degrees
        meeting = 0.0
        if self.implementation.blocking_transfers:
            meeting = log2(PAIR * degrees.tp) * levels[-1].rendezvous
        latency = np.array([each.latency + each.transfer_latency + meeting for each in levels])
        level = self.placement.levels_between().ravel()
        rank, peer = np.indices((degrees.pp, degrees.pp), dtype=np.int32).reshape(2, -1)
        out, into = self.ports_of_levels
        ports = np.concatenate((out[level + 1, rank], into[level + 1, peer]), axis=1)
        return latency[level], ports

    @cached_property
    def port_bandwidth(self) -> Seconds:
        """Bytes/s of each port of each rank."""
        return np.tile(np.repeat(self._reached, 2), self.placement.degrees.pp)

    @property
    def _reached(self) -> Seconds:
        """Bytes/s that transfers reach over each level."""
        return np.array([level.transfer_bandwidth for level in self.cluster.levels])

    @cached_property
    def rates(self) -> Seconds:
        """Bytes/s of a flow alone, by the outermost level that it crosses."""
        return narrowest(self._reached, self._passed)

    @cached_property
    def _passed(self) -> Integers:
        """The levels whose ports a flow passes, by the outermost that it crosses (-1: no more)."""
        levels = self.cluster.levels
        passed = [
            [number for number in range(last) if levels[number].is_passed] + [last]
            for last in range(len(levels))
        ]
        columns = max(map(len, passed))
        return np.array([each + [NONE] * (columns - len(each)) for each in passed], dtype=np.int32)

    @cached_property
    def ports_of_levels(self) -> tuple[Integers, Integers]:
        """By the outermost level of a flow (first: none) and then a rank, its ports out, and in.

        A rank's port out of its n-th level is its 2 n-th, the one in the next.
        """
        none = np.full((1, self._passed.shape[1]), NONE, dtype=np.int32)
        passed = np.concatenate((none, self._passed))[:, None]
        rank = np.arange(self.placement.degrees.pp, dtype=np.int32)[:, None]
        out = 2 * (len(self.cluster.levels) * rank + passed)
        out, into = (np.where(passed == NONE, NONE, each) for each in (out, out + 1))
        return out, into

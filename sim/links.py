"""Seconds, bytes and ports of communication, and what it costs the compute beside it.

Rules:

- Each pipeline rank has two ports for each level of the network, out and in: its GPU's, or its
  share of those that several have. A transfer passes the sender's ports out and the receiver's in,
  of the outermost level that it crosses and of those on the way there. A port's bandwidth is
  what transfers reach; a ring moves as many more bytes as it is slower.
- A gather or reduction is a collective over the rank's data-parallel group as
  it is placed on the network, and one over that of its experts after it. It uses its own
  rank's ports of the level that limits it: where g members share a node, it crosses to the next
  node once for all of them, with g shares of the network. That of
  a stage with two copies spans both; it leaves by the ports of the first one's rank and
  enters by the second's.
- A step that receives from another rank also collects what each tensor-parallel
  device received its share of.
- A transfer is between groups of tensor-parallel devices: what one that blocks takes
  besides latency and bytes, until all of both have come, grows with each doubling.
- A transfer that blocks lengthens the step that receives it and takes no time
  on its lane, so that what a rank sends and receives at one moment is under way
  together. One that is overlapped slows the compute at its two ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log2
from typing import NamedTuple

import numpy as np

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.sim.cluster import Cluster
from bfpp.sim.collectives import collective_seconds, moving
from bfpp.sim.costs import Costs, Load, narrowest
from bfpp.sim.implementation import Implementation
from bfpp.sim.operators import Collective, Execution, Way
from bfpp.sim.place import GroupPlace
from bfpp.sim.placement import DevicePlacement

PAIR = 2
"""Devices at the two ends of a transfer."""


class Shared(NamedTuple):
    """The parameters of each unit on one device, and for each pipeline rank who keeps them too."""

    parameters: Seconds
    places: tuple[GroupPlace, ...]


@dataclass(frozen=True, eq=False)
class Links:
    """The links that the groups of a configuration cross.

    `parameters` are those of each unit on one device, by the stride of those that keep the same.
    """

    cluster: Cluster
    implementation: Implementation
    placement: DevicePlacement
    parameters: Mapping[int, Seconds]
    execution: Execution

    @property
    def width(self) -> int:
        """Ports that a flow passes at most: out and in, of each level."""
        return 2 * int(self._passed.shape[1])

    def transfers(self, graph: TaskGraph, tasks: Integers) -> Load:
        """The load of transfers."""
        rank, peer = graph.rank[tasks], graph.peer[tasks]
        level = self.placement.levels_between()[rank, peer]
        meeting = log2(PAIR * self.placement.degrees.tp) * self.cluster.levels[-1].rendezvous
        latency = np.array([each.latency + each.transfer_latency for each in self.cluster.levels])
        return Load(
            latency[level] + (meeting if self.implementation.blocking_transfers else 0.0),
            self.execution.hidden_bytes / (self.placement.degrees.tp * graph.layout.slices),
            self._ports(rank, peer, level),
        )

    def collectives(
        self, graph: TaskGraph, tasks: Integers, size: float | Seconds, way: Way
    ) -> Load:
        """The load of collectives of data-parallel groups, of `size` bytes for each parameter.

        A group of one has nobody to communicate with. Those of one task follow each other, on the
        ports of the outermost level that limits one of them.
        """
        rank, unit = graph.rank[tasks], graph.unit[tasks]
        peer = np.where(graph.peer[tasks] == NONE, rank, graph.peer[tasks])
        latency, seconds = np.zeros((2, len(tasks)))
        level = np.full(len(tasks), NONE)
        for shared in self.shared.values():
            sizes = size * shared.parameters[unit]
            for place, ranks in _by_place(shared.places):
                here = np.flatnonzero(np.isin(rank, ranks) & (sizes > 0))
                found = moving(way, sizes[here], place, self.cluster)
                latency[here] += found.latency
                seconds[here] += found.seconds
                level[here] = np.maximum(level[here], found.level)
        ports = self._ports(rank, peer, level)
        moved = np.where(level == NONE, 0.0, narrowest(self.port_bandwidth, ports)) * seconds
        return Load(latency, moved, ports)

    def beside_compute(self, graph: TaskGraph, alone: Costs) -> Costs:
        """The costs of all tasks, with what communication costs the compute beside it."""
        taken = alone.seconds_alone()
        compute = self._collecting(graph)
        if self.implementation.blocking_transfers and graph.communication.pp_overlap:
            compute = compute + _of_transfers(graph, taken)
            alone = replace(
                alone,
                seconds=np.where(graph.is_transfer, 0.0, alone.seconds),
                bytes=np.where(graph.is_transfer, 0.0, alone.bytes),
            )
        else:
            compute = compute + self._slowdown(graph, taken)
        return replace(alone, seconds=alone.seconds + compute)

    @cached_property
    def shared(self) -> dict[int, Shared]:
        """What several devices keep, by how far apart they are."""
        groups = {
            stride: Shared(parameters, self.placement.data_groups(stride))
            for stride, parameters in self.parameters.items()
        }
        return {stride: each for stride, each in groups.items() if each.places[0].members > 1}

    @cached_property
    def port_bandwidth(self) -> Seconds:
        """Bytes/s of each port of each rank."""
        reached = [level.transfer_bandwidth for level in self.cluster.levels]
        return np.tile(np.repeat(reached, 2), self.placement.degrees.pp)

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

    def _ports(self, rank: Integers, peer: Integers, level: Integers) -> Integers:
        """The ports of flows from ranks to their peers; none for a level of -1.

        A rank's port out of its n-th level is its 2 n-th, the one in the next.
        """
        passed = np.where((level == NONE)[:, None], NONE, self._passed[level])
        each = 2 * len(self.cluster.levels)
        ends = [
            np.where(passed == NONE, NONE, each * at[:, None] + 2 * passed + way)
            for way, at in enumerate((rank, peer))
        ]
        ports: Integers = np.concatenate(ends, axis=1)
        return ports

    def _collecting(self, graph: TaskGraph) -> Seconds:
        """Seconds for which steps that receive gather the shares of their group.

        With sequence parallelism the shares are what is computed with.
        """
        if self.execution.sequence_parallel:
            return np.zeros(len(graph))
        place = GroupPlace.of(self.placement.degrees.tp, 1, self.cluster.levels)
        size = self.execution.hidden_bytes / graph.layout.slices
        gathering = collective_seconds(Collective(Way.ALL_GATHER, size), place, self.cluster)
        return _of_transfers(graph, np.full(len(graph), gathering))

    def _slowdown(self, graph: TaskGraph, taken: Seconds) -> Seconds:
        """Seconds by which overlapped transfers lengthen the steps that send and receive them."""
        if not graph.communication.pp_overlap:
            return np.zeros(len(graph))
        ends = _of_transfers(graph, taken) + _of_transfers(graph, taken, sent=True)
        return self.implementation.overlap_slowdown * ends


def _by_place(places: Sequence[GroupPlace]) -> list[tuple[GroupPlace, list[int]]]:
    """The places of ranks' groups, each with the ranks whose groups are placed so."""
    return [
        (place, [rank for rank, each in enumerate(places) if each == place])
        for place in dict.fromkeys(places)
    ]


def _of_transfers(graph: TaskGraph, seconds: Seconds, *, sent: bool = False) -> Seconds:
    """For each task, the seconds of the transfers that it receives, or of those `sent` from it."""
    sending, receiving = graph.transfer_ends
    ends = sending if sent else receiving
    total: Seconds = np.bincount(  # type: ignore[assignment]
        ends.step, seconds[ends.transfer], len(graph)
    )
    return total

"""Seconds, bytes and ports of communication, and what it costs the compute that it overlaps.

Rules:

- Each pipeline rank has two ports for each level of the network, out and in: its GPU's, or its
  share of those that several have. A transfer passes the sender's ports out and the receiver's in,
  of the outermost level that it crosses and of those on the way there. A port's bandwidth is
  what transfers reach; a ring moves as many more bytes as it is slower.
- A gather or reduction is a collective over the rank's data-parallel group (with HSDP, its
  sharding group) as it is placed on the network, and one over that of its experts after it.
  The all-reduce of HSDP is over those that keep the same share, and of that share. It uses its own
  rank's ports of the level that limits it: where g members share a node, it crosses to the next
  node once for all of them, with g shares of the network. That of
  a stage with two copies spans both; it leaves by the ports of the first one's rank and
  enters by the second's. So does the all-reduce between the first and the last unit's ranks.
- A step that receives from another rank also collects what each tensor-parallel
  device received its share of.
- A transfer is between groups of tensor-parallel devices. One that blocks also waits, in addition
  to latency and bytes, until all devices of both groups have arrived: longer with each doubling.
- A transfer that blocks lengthens the step that receives it and takes no time
  on its lane, so that what a rank sends and receives at one moment is under way
  together. One that is overlapped slows the compute at its two ends.
- A gather that is overlapped slows the pass that waits for it, a reduction the one that it waits
  for. Beside them run those of the units after and before, which are as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import log2
from typing import NamedTuple

import numpy as np

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE, Flags, Integers, Seconds
from bfpp.schedules.kinds import SomeKinds
from bfpp.schedules.operations import OPERATIONS, Operation, transfers
from bfpp.sim import cost_kernels
from bfpp.sim.cluster import Cluster
from bfpp.sim.collectives import collective_seconds, moving
from bfpp.sim.compiling import WORK
from bfpp.sim.costs import Costs, Load, narrowest
from bfpp.sim.implementation import Implementation
from bfpp.sim.operators import Collective, Way
from bfpp.sim.place import GroupPlace
from bfpp.sim.placement import DevicePlacement
from bfpp.sim.remembered import once

PAIR = 2
"""Devices at the two ends of a transfer."""


@dataclass(frozen=True, eq=False)
class Shared:
    """The parameters of each unit on one device, and for each pipeline rank who keeps them too."""

    parameters: Seconds
    places: tuple[GroupPlace, ...]

    @cached_property
    def by_place(self) -> list[tuple[GroupPlace, Flags]]:
        """The places of ranks' groups, each with whether a rank's group is placed so."""
        places = self.places
        return [
            (place, np.array([each == place for each in places])) for place in dict.fromkeys(places)
        ]


class Exchanged(NamedTuple):
    """What data-parallel tasks exchange: among whom, bytes for each parameter, and how."""

    groups: Mapping[int, Shared]
    sizes: Seconds
    way: Way


class Beside(NamedTuple):
    """What kinds of tasks cost in parallel with others.

    `received` and `sent` are the seconds by which communication lengthens the step that waits for
    it, and the one that it waits for.
    """

    costs: Costs
    received: Seconds
    sent: Seconds

    @property
    def columns(self) -> tuple[Seconds, Seconds, Integers, Seconds, Seconds]:
        """All that is known of each kind, as loops have it."""
        return *self.costs.columns, self.received, self.sent


@dataclass(frozen=True, eq=False)
class Links:
    """The links that the groups of a configuration cross.

    `parameters` are those of each unit on one device, by the stride of those that keep the same.
    """

    cluster: Cluster
    implementation: Implementation
    placement: DevicePlacement
    parameters: Mapping[int, Seconds]

    @property
    def width(self) -> int:
        """Ports that a flow passes at most: out and in, of each level."""
        return 2 * int(self._passed.shape[1])

    def transfers(self, graph: TaskGraph, tasks: Integers, size: float) -> Load:
        """The load of transfers of hidden states of `size` bytes, over all devices of a group."""
        route = graph.rank.take(tasks) * self.placement.degrees.pp + graph.peer.take(tasks)
        latency, ports = self._routes
        return Load(
            latency.take(route), size / self.placement.degrees.tp, ports.take(route, axis=0)
        )

    def collectives(self, graph: TaskGraph, tasks: Integers, exchanged: Exchanged) -> Load:
        """The load of collectives of data-parallel groups.

        A group of one has nobody to communicate with. Those of one task follow each other, on the
        ports of the outermost level that limits one of them.
        """
        rank, unit, peer = (each.take(tasks) for each in (graph.rank, graph.unit, graph.peer))
        peer = np.where(peer == NONE, rank, peer)
        latency, seconds = np.zeros((2, len(tasks)))
        level = np.full(len(tasks), NONE)
        for shared in exchanged.groups.values():
            sizes = exchanged.sizes * shared.parameters.take(unit)
            for place, ranks in shared.by_place:
                here = ranks.take(rank) & (sizes > 0)
                found = moving(exchanged.way, sizes, place, self.cluster)
                latency += found.latency * here
                seconds += found.seconds * here
                level = np.maximum(level, np.where(here, found.level, NONE))
        ports = self._ports(rank, peer, level)
        moved = np.where(level == NONE, 0.0, narrowest(self.port_bandwidth, ports)) * seconds
        return Load(latency, moved, ports)

    def between_ends(self, graph: TaskGraph, tasks: Integers, size: float) -> Load:
        """The load of all-reduces of `size` bytes between devices of two ranks."""
        rank, peer = graph.rank[tasks], graph.peer[tasks]
        if size == 0:
            return Load(np.zeros(len(tasks)))
        places = [
            self.placement.pair(*ends) for ends in zip(rank.tolist(), peer.tolist(), strict=True)
        ]
        sizes = np.array([size])
        each = [moving(Way.ALL_REDUCE, sizes, place, self.cluster) for place in places]
        latency, seconds, level = map(np.concatenate, zip(*each, strict=True))
        ports = self._ports(rank, peer, level)
        return Load(latency, narrowest(self.port_bandwidth, ports) * seconds, ports)

    def beside_compute(
        self, kinds: SomeKinds, alone: Costs, *, overlap: bool, gathered: float = 0.0
    ) -> Beside:
        """What kinds of tasks cost in parallel with compute, from what they cost `alone`.

        Their communication may `overlap` with compute, or not. A step that receives also gathers
        `gathered` bytes, the shares of its tensor-parallel group.
        """
        seconds, moved = alone.seconds.copy(), alone.bytes.copy()
        beside = Costs(seconds, moved, alone.ports, alone.bandwidth)
        received, sent = self._slowdowns.take(kinds.operation, axis=1) * overlap
        WORK.loop(cost_kernels, "hand_over", len(received))(
            kinds.is_transfer,
            self.implementation.blocking_transfers and overlap,
            collecting_seconds(self.cluster, self.placement.degrees.tp, gathered),
            beside.columns,
            beside.bandwidth,
            received,
            sent,
        )
        return Beside(beside, received, sent)

    @cached_property
    def _slowdowns(self) -> Seconds:
        """Shares of its time by which overlapped communication of each operation lengthens others.

        The step that waits for it, and the one that it waits for.
        """
        implementation = self.implementation
        waiting, awaited = shares = np.zeros((2, len(OPERATIONS)))
        of_transfers = list(transfers())
        if implementation.blocking_transfers:
            waiting[of_transfers] = 1.0
        else:
            waiting[of_transfers] = awaited[of_transfers] = implementation.overlap_slowdown
        waiting[Operation.GATHER] = implementation.collective_slowdown
        awaited[Operation.REDUCE] = implementation.collective_slowdown
        return shares

    @cached_property
    def shared(self) -> dict[int, Shared]:
        """What devices keep together, each all of it or a share, by the stride between them."""
        groups = {
            stride: Shared(parameters, self.placement.data_groups(stride))
            for stride, parameters in self.parameters.items()
        }
        return {stride: each for stride, each in groups.items() if each.places[0].members > 1}

    @cached_property
    def replicated(self) -> dict[int, Shared]:
        """The shares of it, by the same stride: a device of each group of replicas keeps one."""
        found = {}
        for stride, parameters in self.parameters.items():
            sharing = self.placement.data_groups(stride)[0].members
            found[stride] = Shared(parameters / sharing, self.placement.replica_groups(stride))
        return found

    @cached_property
    def _routes(self) -> tuple[Seconds, Integers]:
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
        return latency[level], self._ports(rank, peer, level)

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

    @cached_property
    def _ports_of_levels(self) -> tuple[Integers, Integers]:
        """By the outermost level of a flow (first: none) and then a rank, its ports out, and in.

        A rank's port out of its n-th level is its 2 n-th, the one in the next.
        """
        columns = self._passed.shape[1]
        none = np.full((1, columns), NONE, dtype=np.int32)
        passed = np.concatenate((none, self._passed))[:, None]
        rank = np.arange(self.placement.degrees.pp, dtype=np.int32)[:, None]
        out = 2 * (len(self.cluster.levels) * rank + passed)
        out, into = (np.where(passed == NONE, NONE, each) for each in (out, out + 1))
        return out.reshape(-1, columns), into.reshape(-1, columns)

    def _ports(self, rank: Integers, peer: Integers, level: Integers) -> Integers:
        """The ports of flows from ranks to their peers; none for a level of -1."""
        (out, into), first = self._ports_of_levels, (level + 1) * self.placement.degrees.pp
        ports: Integers = np.concatenate(
            (out.take(first + rank, axis=0), into.take(first + peer, axis=0)), axis=1
        )
        return ports


@once
def collecting_seconds(cluster: Cluster, tp: int, size: float) -> float:
    """Seconds in which a tensor-parallel group gathers `size` bytes, if there are any."""
    place = GroupPlace.of(tp, 1, cluster.levels)
    return size and collective_seconds(Collective(Way.ALL_GATHER, size), place, cluster)

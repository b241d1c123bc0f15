"""Seconds, bytes and ports of communication, and what it costs the compute beside it.

Rules:

- Each pipeline rank has four ports: its GPU's NVLink out and in, and its share
  of its node's network out and in. A transfer leaves by the sender's port of
  the link that it crosses and enters by the receiver's. A port's bandwidth is
  what transfers reach; a ring moves as many more bytes as it is slower.
- A gather or reduction is a collective over the rank's data-parallel group as
  it is placed on nodes, and one over that of its experts after it. It uses its own
  rank's out and in ports of the narrowest link: where g members share a node, it
  crosses to the next node once for all of them, with g shares of the network. That of
  a stage with two copies spans both; it leaves by the port of the first one's rank and
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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import log2
from typing import NamedTuple

import numpy as np

from bfpp.schedules import Sharding, TaskGraph
from bfpp.schedules.columns import NONE, Flags, Integers, Seconds
from bfpp.sim.cluster import Cluster, Link
from bfpp.sim.collectives import all_reduce_seconds, ring_bytes, ring_steps
from bfpp.sim.costs import Costs, Load
from bfpp.sim.implementation import Implementation
from bfpp.sim.operators import Execution
from bfpp.sim.placement import DataGroup, DevicePlacement

NVLINK_OUT, NVLINK_IN, NETWORK_OUT, NETWORK_IN = range(4)
PORTS = 4
"""The ports of a pipeline rank; port p of rank r has the number PORTS r + p."""

WIDTH = 2
"""Ports that a flow passes at most."""

PAIR = 2
"""Devices at the two ends of a transfer."""


class Ring(NamedTuple):
    """A ring of a data-parallel group, for each pipeline rank, and the parameters that it passes.

    A step takes its `latency`; `limited` says that the network limits its `bandwidth`.
    """

    group: DataGroup
    parameters: Seconds
    latency: Seconds
    bandwidth: Seconds
    limited: Flags

    def shares(self, sharding: Sharding) -> Seconds:
        """The share of its data that one pass sends over the narrowest link.

        An all-reduce across nodes is hierarchical: the members there are nodes.
        """
        whole = np.full(len(self.limited), ring_bytes(1.0, self.group.members))
        if sharding is not Sharding.NONE:
            return whole
        return np.where(self.limited, (self.group.nodes - 1) / self.group.nodes, whole)


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

    def transfers(self, graph: TaskGraph, tasks: Integers) -> Load:
        """The load of transfers."""
        rank, peer = graph.rank[tasks], graph.peer[tasks]
        crosses = self.placement.crosses_nodes()[rank, peer]
        inside, between = self.cluster.intra_node, self.cluster.inter_node
        meeting = log2(PAIR * self.placement.degrees.tp) * between.rendezvous
        latency = np.where(crosses, between.latency + between.transfer_latency, inside.latency)
        return Load(
            latency + (meeting if self.implementation.blocking_transfers else 0.0),
            self.execution.hidden_bytes / (self.placement.degrees.tp * graph.layout.slices),
            _ports(rank, peer, crosses),
        )

    def collectives(
        self, graph: TaskGraph, tasks: Integers, size: float | Seconds, passes: float
    ) -> Load:
        """The load of collectives of data-parallel groups.

        They pass `size` bytes for each of a unit's parameters around the ring, so often.
        A group of one has nobody to communicate with.
        """
        rank, unit = graph.rank[tasks], graph.unit[tasks]
        peer = np.where(graph.peer[tasks] == NONE, rank, graph.peer[tasks])
        rings = [ring for ring in self._rings if ring.group.members > 1]
        if not rings:
            return Load(0.0)
        uses_network = np.any([ring.limited for ring in rings], axis=0)
        port = np.where(uses_network, self._transfer_bandwidths[1], self._transfer_bandwidths[0])
        latency, moved = np.zeros((2, len(tasks)))
        for ring in rings:
            present = ring.parameters[unit] > 0
            latency += present * (passes * ring_steps(ring.group.members) * ring.latency[rank])
            share = ring.shares(graph.communication.sharding) * (port / ring.bandwidth)
            moved += ring.parameters[unit] * (size * passes) * share[rank]
        return Load(
            latency,
            moved,
            _ports(rank, peer, uses_network[rank]),
        )

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
    def _transfer_bandwidths(self) -> tuple[float, float]:
        """Bytes/s of a transfer in a node, and between nodes."""
        network = self.cluster.inter_node
        within = self.cluster.group_link(PAIR).bandwidth
        return within, network.bandwidth * network.transfer_efficiency

    @cached_property
    def _rings(self) -> list[Ring]:
        """The rings of data-parallel groups."""
        return [self._ring(stride, each) for stride, each in self.parameters.items()]

    def _ring(self, stride: int, parameters: Seconds) -> Ring:
        group = self.placement.data_group(stride)
        inside, network = self.cluster.intra_node, self.cluster.inter_node
        within = np.array(
            [self.cluster.group_link(int(count)).bandwidth for count in group.per_node]
        )
        between = group.per_node * network.bandwidth * network.ring_efficiency
        spans = group.nodes > 1
        limited = spans & (between < within)
        return Ring(
            group,
            parameters,
            np.where(spans, network.latency, inside.latency),
            np.where(limited, between, within),
            limited,
        )

    @property
    def port_bandwidth(self) -> Seconds:
        """Bytes/s of each port of each rank."""
        within, between = self._transfer_bandwidths
        return np.tile([within, within, between, between], self.placement.degrees.pp)

    def _collecting(self, graph: TaskGraph) -> Seconds:
        """Seconds for which steps that receive gather the shares of their group.

        With sequence parallelism the shares are what is computed with.
        """
        if self.execution.sequence_parallel:
            return np.zeros(len(graph))
        ranks = self.placement.degrees.tp
        link: Link = self.cluster.group_link(ranks)
        size = self.execution.hidden_bytes / graph.layout.slices
        gathering = all_reduce_seconds(size, ranks, link) / 2
        return _of_transfers(graph, np.full(len(graph), gathering))

    def _slowdown(self, graph: TaskGraph, taken: Seconds) -> Seconds:
        """Seconds by which overlapped transfers lengthen the steps that send and receive them."""
        if not graph.communication.pp_overlap:
            return np.zeros(len(graph))
        ends = _of_transfers(graph, taken) + _of_transfers(graph, taken, sent=True)
        return self.implementation.overlap_slowdown * ends


def _ports(rank: Integers, peer: Integers, on_network: Flags) -> Integers:
    """The ports of flows from ranks to their peers."""
    leaves = PORTS * rank + np.where(on_network, NETWORK_OUT, NVLINK_OUT)
    enters = PORTS * peer + np.where(on_network, NETWORK_IN, NVLINK_IN)
    ports: Integers = np.stack([leaves, enters], axis=1)
    return ports


def _of_transfers(graph: TaskGraph, seconds: Seconds, *, sent: bool = False) -> Seconds:
    """For each task, the seconds of the transfers that it receives, or of those `sent` from it."""
    sending, receiving = graph.transfer_ends
    ends = sending if sent else receiving
    total: Seconds = np.bincount(  # type: ignore[assignment]
        ends.step, seconds[ends.transfer], len(graph)
    )
    return total

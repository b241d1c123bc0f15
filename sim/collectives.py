"""What collectives cost: steps, each of one latency, and bytes through a link.

In a ring of n, an all-gather or a reduce-scatter takes n - 1 steps and sends
(n - 1) / n of the data out of each member; an all-reduce is both.

Across nodes an all-reduce is hierarchical (as NCCL's trees): data is summed
within each node first, so that only one copy of it travels between the N nodes,
(N - 1) / N of it each way.

In an all-to-all each member sends an n-th of its data to each other member, to all at once: over
the network what is for other nodes, and in the node what stays there, at the same time.
"""

from __future__ import annotations

from typing import NamedTuple

from bfpp.sim.cluster import Cluster, Link
from bfpp.sim.operators import Collective, Copies, Way


def ring_steps(members: int) -> int:
    """Steps of an all-gather or a reduce-scatter."""
    return members - 1


def ring_bytes(size: float, members: int) -> float:
    """Bytes out of (and into) each member, of `size` bytes in all."""
    return size * (members - 1) / members


def all_reduce_seconds(size: float, members: int, link: Link) -> float:
    """Seconds to sum `size` bytes over the members of a ring that has the link to itself."""
    one_way = ring_steps(members) * link.latency + ring_bytes(size, members) / link.bandwidth
    return 2 * one_way


class GroupPlace(NamedTuple):
    """A group's members, and how many of them are on one node."""

    members: int
    per_node: int

    @classmethod
    def of(cls, members: int, stride: int, gpus_per_node: int) -> GroupPlace:
        """Of every `stride`-th device."""
        return cls(members, max(1, min(members, gpus_per_node // stride)))

    @property
    def nodes(self) -> int:
        """How many nodes the group is on."""
        return -(-self.members // self.per_node)


def collective_seconds(collective: Collective, place: GroupPlace, cluster: Cluster) -> float:
    """Seconds of a collective that has its links to itself, once all members have come."""
    if collective.way is Way.ALL_TO_ALL:
        return _all_to_all_seconds(collective, place, cluster)
    ways = 1.0 if collective.way is Way.ALL_REDUCE else 0.5
    return ways * all_reduce_seconds(collective.bytes, place.members, cluster.group_link(*place))


def _all_to_all_seconds(collective: Collective, place: GroupPlace, cluster: Cluster) -> float:
    inside, between = cluster.intra_node, cluster.inter_node
    within = cluster.group_link(place.per_node).bandwidth * inside.exchange_efficiency
    each = collective.bytes / place.members
    seconds = (place.per_node - 1) * each / within
    latency = inside.latency
    if place.nodes > 1:
        network = between.bandwidth * between.ring_efficiency
        away = (
            (place.members - place.per_node) * each * crossing_share(collective.copies, place.nodes)
        )
        if collective.copies:  # what comes to a node is spread there to all its members
            seconds = (place.per_node - 1) / place.per_node * collective.bytes / within
        seconds = max(seconds, away / network)
        latency = between.latency
    return seconds + latency + inside.exchange_latency


def crossing_share(copies: Copies | None, nodes: int) -> float:
    """The share of rows for other nodes that cross the network, where one for each node does.

    Of `number` copies, spread evenly over as many nodes as they may go to, so many nodes get
    one at least.
    """
    if copies is None:
        return 1.0
    reached = max(1.0, copies.share_of_nodes * nodes)
    return reached * (1 - (1 - 1 / reached) ** copies.number) / copies.number

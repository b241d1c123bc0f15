"""What collectives cost: steps, each of one latency, and bytes through a link.

In a ring of n, an all-gather or a reduce-scatter takes n - 1 steps and sends
(n - 1) / n of the data out of each member; an all-reduce is both.

Across nodes an all-reduce is hierarchical (as NCCL's trees): data is summed
within each node first, so that only one copy of it travels between the N nodes,
(N - 1) / N of it each way.
"""

from __future__ import annotations

from bfpp.sim.cluster import Link


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

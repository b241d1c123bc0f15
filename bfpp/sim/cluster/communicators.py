"""Memory of NCCL's communicators on a GPU: the buffers of their connections, at the most.

Theory of operation. A communicator has channels, one for each block of its kernels. In each of them
a process has connections to its neighbours in rings and trees, or to the peer of a transfer, and
each connection has a buffer of every protocol (src/include/device.h and src/init.cc of NCCL 2.30).
Within a node, over NVLink or PCIe, the receiver has it (src/transport/p2p.cc). Over the network
both ends do, without the protocol LL's, which is on the host; those of transfers are shared, and
smaller (src/transport/net.cc). Not counted are NVLS's buffers, a user's that are registered, and
some megabytes of bookkeeping.
"""

from __future__ import annotations

from collections.abc import Sequence

MEBIBYTE = 2**20

LL = 8 * 512 * 8 * 16
"""Lines of a thread, threads, steps, and bytes of a line."""
LL128 = 120 * 640 * 8 * 8
"""Elements of a thread, threads, steps, and bytes of an element."""
SIMPLE = 4 * MEBIBYTE

SHARED = 16 * 2**17
"""Steps, and bytes of each, of a channel's transfers over the network."""

NEIGHBOURS = 1 + 3
"""One each way in a ring; in a tree, one above and two below, both ways."""


def communicator_bytes(
    members: Sequence[int], channels: int, gpus_per_node: int, *, transfers: bool = False
) -> int:
    """Bytes of a communicator of some processes, which are numbered node by node.

    One that only `transfers` sends from one of two to the other; all others reduce. A process
    alone has no connection.
    """
    if len(members) < 2:
        return 0
    is_within = len({member // gpus_per_node for member in members}) == 1
    if transfers:
        return channels * (LL + LL128 + SIMPLE if is_within else SHARED)
    connections = channels * (NEIGHBOURS if len(members) > 2 else 1)
    return connections * (LL + LL128 + SIMPLE if is_within else 2 * (LL128 + SIMPLE))

"""Links that host copies share with network traffic, and with each other.

Theory of operation. A copy of offloaded activations is a flow like others: at most `host_bandwidth`
by itself, and less where ports are shared (max-min fairly, `bfpp.sim.engines.ports`).

- A device's own link (`host_link`, PCIe or NVLink-C2C) carries its copies, and its traffic with
  other nodes where the network card is behind the same link or switch: each direction by itself.
- The memory of a node's hosts (`host_memory_bandwidth`) is written and read by all devices of the
  node that train: each has an equal share of it, for both directions together.

Where a cluster's file gives neither bandwidth, copies take their seconds alone and share nothing.
Copies do not contend with kernels for the device's memory.
"""

from __future__ import annotations

import numpy as np

from bfpp.schedules import Operation, TaskGraph
from bfpp.schedules.columns import NONE, Integers
from bfpp.schedules.graph.task_kinds import SomeKinds
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.engines.cost_model import Costs

COPIES, LINK, MEMORY = 0, 2, 4
"""The ports of a rank's devices: of copies out and in, of the link out and in, of the memory."""

PORTS = 5


def with_host_links(
    graph: TaskGraph, kinds: SomeKinds, costs: Costs, cluster: Cluster, devices: int
) -> Costs:
    """The costs of some kinds of tasks, with these ports beside those of `.links`.

    `devices` are all that train.
    """
    if not graph.communication.offload:
        return costs
    device, copies = cluster.device, cluster.device.host_bandwidth
    shared, memory = device.host_link, device.host_memory_bandwidth
    if copies is None or (shared is None and memory is None):
        return costs
    if memory is not None:
        memory /= min(devices, cluster.gpus_per_node)
    leaving, coming = (kinds.operation == each for each in (Operation.OFFLOAD, Operation.RELOAD))
    copied, first = leaving | coming, len(costs.bandwidth) + PORTS * graph.rank[kinds.first]
    ports = np.full((len(copied), 3), NONE, dtype=np.int32)
    ports[:, 0] = np.where(copied, first + COPIES + coming, NONE)
    if memory is not None:
        ports[:, 1] = np.where(copied, first + MEMORY, NONE)
    if shared is not None:
        out, into = _passed(costs, cluster)
        ports[:, 1:][~copied] = np.stack((out, into), axis=1)[~copied]
        ports[:, 2] = np.where(copied, first + LINK + coming, ports[:, 2])
    bandwidth = (copies, copies, shared or copies, shared or copies, memory or copies)
    return Costs(
        np.where(copied, 0.0, costs.seconds),
        np.where(copied, costs.seconds * copies, costs.bytes),
        np.concatenate((costs.ports, ports), axis=1),
        np.concatenate((costs.bandwidth, np.tile(bandwidth, graph.layout.pp))),
    )


def _passed(costs: Costs, cluster: Cluster) -> tuple[Integers, Integers]:
    """The links out and in that each flow passes, whose ports are not of NVLink alone."""
    levels, ports = len(cluster.levels), costs.ports
    is_passed = np.array([level.is_passed for level in cluster.levels])
    rank, rest = np.divmod(ports, 2 * levels)
    link = len(costs.bandwidth) + PORTS * rank + LINK + rest % 2
    passed = np.where((ports != NONE) & is_passed[rest // 2], link, NONE)
    sending, receiving = np.hsplit(passed, 2)
    return sending.max(axis=1), receiving.max(axis=1)

"""Host memory that offloaded activations pin, by rank and by node."""

from __future__ import annotations

import numpy as np

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.units.offloading import offloaded_bytes
from bfpp.traces.timeline.memory_record import MemoryRecord, copies_of


def host_memory(graph: TaskGraph, physical: PhysicalCosts) -> Numbers:
    """Peak bytes of pinned host memory of each of a rank's devices, by rank."""
    size = offloaded_bytes(physical, graph.layout) / graph.layout.slices
    ranks = range(graph.layout.pp)
    records = (
        MemoryRecord(rank, {}, {}, size[graph.unit[copies_of(graph, rank)]]) for rank in ranks
    )
    return np.array([each.on_host(graph) for each in records])


def node_memory(graph: TaskGraph, physical: PhysicalCosts) -> float:
    """Bytes that the devices of one node pin together, at most."""
    devices = physical.devices(graph.layout)
    of_device = np.repeat(host_memory(graph, physical), devices // graph.layout.pp)
    node = np.arange(devices) // physical.cluster.gpus_per_node
    return float(np.bincount(node, of_device).max())

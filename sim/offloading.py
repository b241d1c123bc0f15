"""Offloaded activations: the bytes that leave a device, the seconds of a copy, and which pay."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from bfpp.schedules import InvalidConfiguration, Layout, TaskGraph
from bfpp.schedules.columns import Seconds
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.offload import ALL, MODULES
from bfpp.sim.activations import activations_of_units
from bfpp.sim.cluster import Cluster
from bfpp.sim.compute import part_counts
from bfpp.sim.remembered import once_for_stages
from bfpp.traces.held import Held, copies_of

if TYPE_CHECKING:
    from bfpp.sim.physical import PhysicalCosts


@once_for_stages
def offloaded_bytes(physical: PhysicalCosts, layout: Layout) -> Numbers:
    """For each unit, the bytes of a micro-batch that leave a device when it is offloaded.

    Of several modules, each is offloaded by itself.
    """
    if not physical.offload_modules:
        return activations_of_units(physical, layout).saved * physical.offload_share
    moved = np.zeros(layout.units)
    for part, count in part_counts(physical, physical.layers(layout)):
        inputs = {
            tensor
            for module in physical.offload_modules
            for tensor in part.saved_inputs(MODULES[module])
        }
        moved += count * sum(tensor.bytes for tensor in inputs)
    return moved * physical.offload_share


def host_bandwidth(cluster: Cluster) -> float:
    """Bytes a second of copies to the host or back; raises `InvalidConfiguration` if unknown."""
    if (bandwidth := cluster.device.host_bandwidth) is None:
        raise InvalidConfiguration(
            "offload", f"{cluster.name}'s file does not say its device's host_bandwidth"
        )
    return bandwidth


def host_copy_seconds(physical: PhysicalCosts, layout: Layout) -> Seconds:
    """For each unit, the seconds of such a copy in either direction."""
    return offloaded_bytes(physical, layout) / host_bandwidth(physical.cluster)


def least_passes(physical: PhysicalCosts, layout: Layout) -> int:
    """Mean passes that take as long as the longest copy to the host and back.

    Activations that are needed sooner are kept: PipeOffload (Wan et al., 2025) offloads those
    with the longest lifespans.
    """
    units = physical.unit_seconds(layout)
    mean = float((units.forward + units.backward_input + units.backward_weight).mean()) / 2
    return max(ALL, ceil(2 * float(host_copy_seconds(physical, layout).max()) / mean))


def host_memory(graph: TaskGraph, physical: PhysicalCosts) -> Numbers:
    """For each rank, the bytes of host memory that each of its devices pins, at their peak."""
    size = offloaded_bytes(physical, graph.layout) / graph.layout.slices
    ranks = range(graph.layout.pp)
    held = (Held(rank, {}, {}, size[graph.unit[copies_of(graph, rank)]]) for rank in ranks)
    return np.array([each.on_host(graph) for each in held])


def node_memory(graph: TaskGraph, physical: PhysicalCosts) -> float:
    """Bytes that the devices of a node pin together, of the node whose devices pin most."""
    devices = physical.devices(graph.layout)
    of_device = np.repeat(host_memory(graph, physical), devices // graph.layout.pp)
    node = np.arange(devices) // physical.cluster.gpus_per_node
    return float(np.bincount(node, of_device).max())

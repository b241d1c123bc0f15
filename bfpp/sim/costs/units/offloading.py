"""Offloaded activations: bytes that leave a device, seconds of a copy, and which are worth it."""

from __future__ import annotations

from math import ceil

import numpy as np

from bfpp.schedules import InvalidConfiguration, Layout
from bfpp.schedules.columns import Seconds
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.settings.offloading import ALL, MODULES
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.costs.units.activations import activations_of_units
from bfpp.sim.costs.units.seconds import part_counts, unit_seconds
from bfpp.sim.costs.units.settings import OffloadSettings
from bfpp.sim.engines.caching import once_for_stages


@once_for_stages
def offloaded_bytes(shape: OffloadSettings, layout: Layout) -> Numbers:
    """For each unit, the bytes of a micro-batch that leave a device when it is offloaded.

    Of several modules, each is offloaded by itself.
    """
    if not shape.offload_modules:
        return activations_of_units(shape, layout).saved * shape.offload_share
    moved = np.zeros(layout.units)
    for part, count in part_counts(shape, shape.layers(layout)):
        inputs = {
            tensor
            for module in shape.offload_modules
            for tensor in part.saved_inputs(MODULES[module])
        }
        moved += count * sum(tensor.bytes for tensor in inputs)
    return moved * shape.offload_share


def host_bandwidth(cluster: Cluster) -> float:
    """Bytes a second of copies to the host or back; raises `InvalidConfiguration` if unknown."""
    if (bandwidth := cluster.device.host_bandwidth) is None:
        raise InvalidConfiguration(
            "offload", f"{cluster.name}'s file does not say its device's host_bandwidth"
        )
    return bandwidth


def host_copy_seconds(shape: OffloadSettings, layout: Layout) -> Seconds:
    """For each unit, the seconds of a copy in either direction."""
    return offloaded_bytes(shape, layout) / host_bandwidth(shape.cluster)


def least_passes(shape: OffloadSettings, layout: Layout) -> int:
    """Mean passes that take as long as the longest copy to the host and back.

    Activations that are needed sooner are kept: PipeOffload (Wan et al., 2025) offloads those
    with the longest lifespans.
    """
    units = unit_seconds(shape, shape.layers(layout))
    mean = float((units.forward + units.backward_input + units.backward_weight).mean()) / 2
    return max(ALL, ceil(2 * float(host_copy_seconds(shape, layout).max()) / mean))

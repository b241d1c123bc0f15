"""A cluster by its parts: devices, and the links within and between nodes."""

from __future__ import annotations

from dataclasses import dataclass

from schedules import InvalidConfiguration
from sim.preset_files import read_settings, require_keys


@dataclass(frozen=True)
class Device:
    """One GPU.

    `peak` is in flop/s (half precision), `memory_bandwidth` in bytes/s,
    `memory` in bytes; `matmul_efficiency` is the share of the peak that large
    matrix products reach.
    """

    peak: float
    memory_bandwidth: float
    memory: float
    matmul_efficiency: float


@dataclass(frozen=True)
class Link:
    """A way between devices: bytes/s for each device and direction, seconds a step."""

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Cluster:
    """Nodes of equal devices; `inter_node` is a device's share of its node's network."""

    name: str
    device: Device
    gpus_per_node: int
    intra_node: Link
    inter_node: Link

    @property
    def network_intensity(self) -> float:
        """I_IB, flop/byte: peak over network in and out (6,240 in the paper's A100 example)."""
        return self.device.peak / (2 * self.inter_node.bandwidth)


_KEYS = {"gpus_per_node": int, "device": dict, "intra_node": dict, "inter_node": dict}
_DEVICE_KEYS = dict.fromkeys(("peak", "memory_bandwidth", "memory", "matmul_efficiency"), float)
_INTRA_NODE_KEYS = dict.fromkeys(("bandwidth", "latency"), float)
_INTER_NODE_KEYS = dict.fromkeys(("bandwidth_per_node", "latency"), float)


def load_cluster(name_or_path: str) -> Cluster:
    """The cluster of that preset, or of that TOML file.

    Raises `InvalidConfiguration` for a name that is unknown or a file that is malformed.
    """
    name, settings = read_settings("cluster", name_or_path)
    table = require_keys("cluster", name, settings, _KEYS)
    device = require_keys("cluster", f"{name}: device", table["device"], _DEVICE_KEYS)
    inside = require_keys("cluster", f"{name}: intra_node", table["intra_node"], _INTRA_NODE_KEYS)
    between = require_keys("cluster", f"{name}: inter_node", table["inter_node"], _INTER_NODE_KEYS)
    if device["matmul_efficiency"] > 1:
        raise InvalidConfiguration(
            "cluster",
            f"{name}: device: matmul_efficiency must be at most 1, "
            f"not {device['matmul_efficiency']!r}",
        )
    share = between["bandwidth_per_node"] / table["gpus_per_node"]
    return Cluster(
        name,
        Device(**device),
        table["gpus_per_node"],
        Link(**inside),
        Link(share, between["latency"]),
    )

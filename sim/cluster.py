"""A cluster by its parts: devices, and the links within and between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.precision import Format, Precision
from bfpp.sim.kinds import CLUSTER, require_kind
from bfpp.sim.numbers import is_count, whole
from bfpp.sim.preset_files import Table, fitted_settings, read_settings, require_keys


@dataclass(frozen=True)
class AttentionSpeed:
    """Fused attention: the shares of the peak that its passes reach, and what each takes besides.

    The shares are those of a causal pass's own operations. The defaults are those of
    FlashAttention-2 on A100 in training, assumed. Kernels whose heads of keys are wider than those
    of values reach `uneven_heads` of these shares.
    """

    forward_efficiency: float = 0.5
    backward_efficiency: float = 0.4
    forward_latency: float = 0.0
    backward_latency: float = 0.0
    uneven_heads: float = 1.0


@dataclass(frozen=True)
class Device:
    """One GPU.

    `peak` is in flop/s (half precision), `memory_bandwidth` in bytes/s,
    `memory` in bytes, `multiprocessors` a count, `launch_seconds` what each
    kernel takes besides its work. The efficiencies are shares of the peak
    (`matmul_efficiency` of a large matrix product, `sustained_efficiency` that
    the power limit allows over a step) and of the memory's bandwidth.
    `host_seconds` is what the host takes to launch a kernel: no more kernels
    run in a second. `tile` has the rows and columns of a product's tiles where
    whole waves of them take the time, and is left out where libraries choose
    tiles, and split sums, so that none is wasted. `peaks` has the peak of
    other precisions and formats, `format_efficiencies` the share of `matmul_efficiency` that
    large products of operands of a format reach of its peak. One that `reads_columns` of operands
    in 8 bits needs no transposed copies of them.
    """

    peak: float
    memory_bandwidth: float
    memory: float
    multiprocessors: int
    launch_seconds: float
    matmul_efficiency: float
    sustained_efficiency: float
    memory_efficiency: float
    host_seconds: float = 0.0
    tile: int | None = None
    attention: AttentionSpeed = AttentionSpeed()
    peaks: tuple[tuple[str, float], ...] = ()
    format_efficiencies: tuple[tuple[str, float], ...] = ()
    reads_columns: bool = False

    def peak_of(self, precision: Precision | Format) -> float:
        """The peak in flop/s; raises `InvalidConfiguration` if nobody says it."""
        if isinstance(precision, Precision) and precision.is_mixed:
            return self.peak
        peaks = dict(self.peaks)
        if precision not in peaks:
            raise InvalidConfiguration(
                "precision", f"the cluster's file has no peak for {precision} (device: peaks)"
            )
        return peaks[precision]

    def product_rate(self, precision: Precision | Format) -> float:
        """The flop/s of a large matrix product whose operands have that precision."""
        share = dict(self.format_efficiencies).get(precision, 1.0)
        return self.peak_of(precision) * self.matmul_efficiency * share


@dataclass(frozen=True)
class Link:
    """A way between devices: bytes/s for each device and direction, seconds a step.

    `transfer_efficiency` is the share of the bandwidth that transfers reach,
    one way at a time, `ring_efficiency` the share of rings, both ways at once.
    `transfer_latency` is what a transfer takes before its first byte, `rendezvous`
    what one that blocks takes until both of two devices have come to it, and as
    much again for each doubling of the groups at its ends;
    `synchronisation` what an all-reduce within a training step takes until both
    of two devices have come to it, and as much again for each doubling of them.
    All-to-alls reach `exchange_efficiency` of the bandwidth, and take `exchange_latency` besides.
    """

    bandwidth: float
    latency: float
    transfer_latency: float = 0.0
    rendezvous: float = 0.0
    synchronisation: float = 0.0
    transfer_efficiency: float = 1.0
    ring_efficiency: float = 1.0
    exchange_efficiency: float = 1.0
    exchange_latency: float = 0.0


@dataclass(frozen=True)
class Cluster:
    """Nodes of equal devices; `inter_node` is a device's share of its node's network.

    `intra_node` is the link of a whole node's devices together. Where smaller
    groups have fewer of the wires, `group_bandwidths` has (devices, bytes/s).
    """

    name: str
    device: Device
    gpus_per_node: int
    intra_node: Link
    inter_node: Link
    group_bandwidths: tuple[tuple[int, float], ...] = ()

    @property
    def network_intensity(self) -> float:
        """I_IB, flop/byte: peak over network in and out (6,240 in the paper's A100 example)."""
        return self.device.peak / (2 * self.inter_node.bandwidth)

    def group_link(self, members: int, per_node: int | None = None) -> Link:
        """The link of a ring of so many devices, so many of them on a node (as many as can be).

        A ring over several nodes enters and leaves each of them once on the network's ports of its
        members there, and most of its steps stay inside (NCCL's own model).
        """
        per_node = min(members, self.gpus_per_node) if per_node is None else per_node
        inside = self._inside_link(per_node)
        return inside if per_node == members else self._ring_of_nodes(inside, members, per_node)

    def _inside_link(self, members: int) -> Link:
        larger = [bandwidth for devices, bandwidth in self.group_bandwidths if devices >= members]
        if not larger:
            return self.intra_node
        return replace(self.intra_node, bandwidth=min(*larger, self.intra_node.bandwidth))

    def _ring_of_nodes(self, inside: Link, members: int, per_node: int) -> Link:
        between = self.inter_node
        network = per_node * between.bandwidth * between.ring_efficiency
        bandwidth = network if per_node == 1 else min(inside.bandwidth, network)
        crossings = members // per_node - 1
        latency = inside.latency + (between.latency - inside.latency) * crossings / (members - 1)
        return replace(inside, bandwidth=bandwidth, latency=latency)


_KEYS = {"gpus_per_node": int, "device": dict, "intra_node": dict, "inter_node": dict}
_EFFICIENCIES = ("matmul_efficiency", "sustained_efficiency", "memory_efficiency")
_DEVICE_KEYS: dict[str, type] = {
    **dict.fromkeys(("peak", "memory_bandwidth", "memory"), float),
    **dict.fromkeys(("multiprocessors", "tile"), int),
    **dict.fromkeys(("launch_seconds", "host_seconds"), float),
    "reads_columns": bool,
    **dict.fromkeys(("attention", "peaks", "format_efficiencies"), dict),
    **dict.fromkeys(_EFFICIENCIES, float),
}
_DEVICE_DEFAULTS: Table = {
    "multiprocessors": 1,
    "launch_seconds": 0.0,
    "host_seconds": 0.0,
    "tile": None,
    "attention": {},
    "peaks": {},
    "format_efficiencies": {},
    "reads_columns": False,
    "sustained_efficiency": 1.0,
    "memory_efficiency": 1.0,
}
_INTRA_NODE_OPTIONAL = ("synchronisation", "exchange_efficiency", "exchange_latency")
_INTRA_NODE_KEYS = {
    **dict.fromkeys(("bandwidth", "latency", *_INTRA_NODE_OPTIONAL), float),
    "group_bandwidths": dict,
}
_SHARES = ("transfer_efficiency", "ring_efficiency")
_INTER_NODE_KEYS = dict.fromkeys(
    ("bandwidth_per_node", "latency", "transfer_latency", "rendezvous", *_SHARES), float
)


def load_cluster(name_or_path: str, fitted: Mapping[str, Table] | None = None) -> Cluster:
    """The cluster of that preset, or of that TOML file.

    `fitted` has settings by cluster that replace those of the file, as
    `bfpp fit` writes them; by default those that are shipped. Raises
    `InvalidConfiguration` for a name that is unknown or a file that is malformed.
    """
    name, settings = read_settings("cluster", name_or_path)
    known = fitted_settings("clusters") if fitted is None else fitted
    if not name_or_path.endswith(".toml"):
        settings = _replaced(settings, known.get(name, {}))
    require_kind("cluster", name, settings, CLUSTER)
    table = require_keys("cluster", name, settings, _KEYS)
    device = require_keys(
        "cluster", f"{name}: device", table["device"], _DEVICE_KEYS, tuple(_DEVICE_DEFAULTS)
    )
    inside = require_keys(
        "cluster",
        f"{name}: intra_node",
        table["intra_node"],
        _INTRA_NODE_KEYS,
        (*_INTRA_NODE_OPTIONAL, "group_bandwidths"),
    )
    between = require_keys(
        "cluster",
        f"{name}: inter_node",
        table["inter_node"],
        _INTER_NODE_KEYS,
        ("transfer_latency", "rendezvous", *_SHARES),
    )
    _require_shares(f"{name}: device", device, _EFFICIENCIES)
    device = {**_DEVICE_DEFAULTS, **device}
    device["attention"] = _attention(name, device["attention"])
    for key, precisions in _BY_PRECISION.items():
        device[key] = _by_precision(name, key, device[key], precisions)
    _require_shares(
        f"{name}: device: format_efficiencies", dict(device["format_efficiencies"]), tuple(Format)
    )
    _require_shares(f"{name}: intra_node", inside, ("exchange_efficiency",))
    _require_shares(f"{name}: inter_node", between, _SHARES)
    more = {key: value for key, value in between.items() if key != "bandwidth_per_node"}
    return Cluster(
        name,
        Device(**device),
        table["gpus_per_node"],
        Link(**{key: inside[key] for key in inside if key != "group_bandwidths"}),
        Link(between["bandwidth_per_node"] / table["gpus_per_node"], **more),
        _group_bandwidths(name, inside.get("group_bandwidths", {})),
    )


def _replaced(settings: Table, fitted: Mapping[str, object]) -> Table:
    """The settings of a file with those that are fitted in their place."""
    replaced = dict(settings)
    for section, values in fitted.items():
        if isinstance(values, dict) and isinstance(replaced.get(section), dict):
            replaced[section] = {**replaced[section], **values}
    return replaced


def _require_shares(where: str, table: Table, names: tuple[str, ...]) -> None:
    for name in names:
        if table.get(name, 0) > 1:
            raise InvalidConfiguration(
                "cluster", f"{where}: {name} must be at most 1, not {table[name]!r}"
            )


_ATTENTION_SHARES = ("forward_efficiency", "backward_efficiency", "uneven_heads")
_ATTENTION_KEYS = dict.fromkeys((*_ATTENTION_SHARES, "forward_latency", "backward_latency"), float)


def _attention(name: str, table: Table) -> AttentionSpeed:
    where = f"{name}: device: attention"
    require_keys("cluster", where, table, _ATTENTION_KEYS, tuple(_ATTENTION_KEYS))
    _require_shares(where, table, _ATTENTION_SHARES)
    return AttentionSpeed(**table)


_BY_PRECISION: dict[str, list[str]] = {
    "peaks": [*(each for each in Precision if not each.is_mixed), *Format],
    "format_efficiencies": [*Format],
}
"""The precisions and formats that a device may have a number for."""


def _by_precision(
    name: str, key: str, table: Table, known: list[str]
) -> tuple[tuple[str, float], ...]:
    where = f"{name}: device: {key}"
    require_keys("cluster", where, table, dict.fromkeys(map(str, known), float), tuple(known))
    return tuple(sorted(table.items()))


def _group_bandwidths(name: str, table: Table) -> tuple[tuple[int, float], ...]:
    """The bandwidths of a node's groups, by the number of devices in them."""
    where = f"{name}: intra_node: group_bandwidths"
    for size in table:
        if whole(size) is None or not is_count(whole(size)):
            raise InvalidConfiguration("cluster", f"{where}: {size!r} is not a number of devices")
    numbers = require_keys("cluster", where, table, dict.fromkeys(table, float))
    return tuple(sorted((int(size), float(value)) for size, value in numbers.items()))

"""A cluster's network: levels of links, innermost first, of any depth.

Devices that one level joins (`size` of them) reach one another by it; those that it does not join,
by the next level. What leaves a node passes a port of each level on its way, except NVLink, which
is a fabric of its own: the network does not begin behind it.

A file describes each level in a table (`levels.NAME`), in the order of their sizes. `intra_node`
and `inter_node` are short for two of them, or the former alone for one node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from bfpp.schedules import InvalidConfiguration
from bfpp.sim.presets.files import Table, require_keys
from bfpp.sim.presets.numbers import is_count, whole

NVLINK, PCIE, NETWORK = LINKS = ("nvlink", "pcie", "network")
"""Kinds of links of a level."""

INTRA_NODE, INTER_NODE = "intra_node", "inter_node"
"""The names of the two levels that most clusters have."""


@dataclass(frozen=True)
class Level:
    """A level: bytes/s for each device and direction, and seconds of a ring's step (Simple).

    It joins `size` devices, or all. Their links together carry the sum of theirs over
    `oversubscription`. Where smaller groups have fewer of the wires, `group_bandwidths` has
    (devices, bytes/s).

    `transfer_efficiency` is the share of the bandwidth that transfers reach,
    one way at a time, `ring_efficiency` the share of rings, both ways at once.
    `transfer_latency` is what a transfer takes before its first byte, `rendezvous`
    what one that blocks takes until both of two devices have come to it, and as
    much again for each doubling of the groups at its ends;
    `synchronisation` what an all-reduce within a training step takes until both
    of two devices have come to it, and as much again for each doubling of them.
    All-to-alls reach `exchange_efficiency` of the bandwidth, and take `exchange_latency` more.

    Switches that sum (NVLS) do `switch_bandwidth` bytes/s of an all-reduce's data. Flags instead of
    fences (the protocol LL) reach no more than `flag_bandwidth`.
    """

    name: str
    bandwidth: float
    latency: float
    size: int | None = None
    link: str = NETWORK
    oversubscription: float = 1.0
    transfer_latency: float = 0.0
    rendezvous: float = 0.0
    synchronisation: float = 0.0
    transfer_efficiency: float = 1.0
    ring_efficiency: float = 1.0
    exchange_efficiency: float = 1.0
    exchange_latency: float = 0.0
    switch_bandwidth: float | None = None
    flag_bandwidth: float | None = None
    group_bandwidths: tuple[tuple[int, float], ...] = ()

    def bandwidth_of(self, members: int) -> float:
        """Bytes/s of each of `members` devices, if all of them communicate."""
        larger = [bandwidth for devices, bandwidth in self.group_bandwidths if devices >= members]
        return min([*larger, self.bandwidth]) / self.oversubscription

    @property
    def transfer_bandwidth(self) -> float:
        """Bytes/s of a transfer between two devices."""
        return self.bandwidth_of(2) * self.transfer_efficiency

    @property
    def is_passed(self) -> bool:
        """True if traffic to outer levels passes this level's ports."""
        return self.link != NVLINK


_SHARES = ("transfer_efficiency", "ring_efficiency", "exchange_efficiency")
_TIMES = ("transfer_latency", "rendezvous", "synchronisation", "exchange_latency")
_KEYS: dict[str, type] = {
    **dict.fromkeys(("bandwidth", "port_bandwidth", "latency", "oversubscription"), float),
    **dict.fromkeys((*_SHARES, *_TIMES, "switch_bandwidth", "flag_bandwidth"), float),
    **dict.fromkeys(("size", "gpus_per_port"), int),
    "link": str,
    "group_bandwidths": dict,
}
_INTRA_NODE_KEYS = (
    *("bandwidth", "latency", "synchronisation", "exchange_efficiency", "exchange_latency"),
    *("switch_bandwidth", "flag_bandwidth", "group_bandwidths"),
)
_INTER_NODE_KEYS = (
    *("bandwidth_per_node", "latency", "oversubscription", "transfer_latency", "rendezvous"),
    *("transfer_efficiency", "ring_efficiency"),
)
_SECTIONS = {INTRA_NODE: _INTRA_NODE_KEYS, INTER_NODE: _INTER_NODE_KEYS}


def read_levels(name: str, table: Table) -> tuple[Level, ...]:
    """Levels of a cluster's file, in either of the two forms."""
    if "levels" not in table:
        return _two_levels(name, table)
    unsorted = [
        _level(f"{name}: levels: {key}", key, each) for key, each in table["levels"].items()
    ]
    levels = tuple(sorted(unsorted, key=lambda level: level.size or float("inf")))
    if not levels:
        raise InvalidConfiguration("cluster", f"{name}: levels must not be empty")
    if "device" in table["levels"]:
        raise InvalidConfiguration("cluster", f"{name}: levels: a level cannot be called device")
    for inner, outer in pairwise(levels):
        if inner.size is None or (outer.size or inner.size + 1) <= inner.size:
            raise InvalidConfiguration(
                "cluster", f"{name}: levels: {outer.name} must join more devices than {inner.name}"
            )
    return levels


def _two_levels(name: str, table: Table) -> tuple[Level, ...]:
    gpus = table["gpus_per_node"]
    kinds = {**_KEYS, "bandwidth_per_node": float}
    sections = {
        section: require_keys(
            "cluster",
            f"{name}: {section}",
            table[section],
            {key: kinds[key] for key in keys},
            keys[2:],
        )
        for section, keys in _SECTIONS.items()
        if section in table
    }
    inside = {**sections[INTRA_NODE], "size": gpus, "link": NVLINK}
    levels = [_level(f"{name}: {INTRA_NODE}", INTRA_NODE, inside)]
    if between := sections.get(INTER_NODE):
        shared = {key: value for key, value in between.items() if key != "bandwidth_per_node"}
        shared |= {"port_bandwidth": between["bandwidth_per_node"], "gpus_per_port": gpus}
        levels.append(_level(f"{name}: {INTER_NODE}", INTER_NODE, {**shared, "link": NETWORK}))
    return tuple(levels)


def _level(where: str, name: str, table: object) -> Level:
    known = tuple(key for key in _KEYS if key != "latency")
    settings = dict(require_keys("cluster", where, table, _KEYS, known))
    for share in _SHARES:
        if settings.get(share, 0) > 1:
            raise InvalidConfiguration(
                "cluster", f"{where}: {share} must be at most 1, not {settings[share]!r}"
            )
    if settings.setdefault("link", NETWORK) not in LINKS:
        raise InvalidConfiguration(
            "cluster", f"{where}: link must be one of {', '.join(LINKS)}, not {settings['link']!r}"
        )
    if ("bandwidth" in settings) == ("port_bandwidth" in settings):
        raise InvalidConfiguration(
            "cluster", f"{where}: give either bandwidth (of a GPU) or port_bandwidth"
        )
    sharing = settings.pop("gpus_per_port", 1)
    if "port_bandwidth" in settings:
        settings["bandwidth"] = settings.pop("port_bandwidth") / sharing
    groups = _group_bandwidths(where, settings.pop("group_bandwidths", {}))
    return Level(name, group_bandwidths=groups, **settings)


def _group_bandwidths(where: str, table: Mapping[str, object]) -> tuple[tuple[int, float], ...]:
    """The bandwidths of smaller groups, by the number of devices in them."""
    where = f"{where}: group_bandwidths"
    for size in table:
        if whole(size) is None or not is_count(whole(size)):
            raise InvalidConfiguration("cluster", f"{where}: {size!r} is not a number of devices")
    numbers = require_keys("cluster", where, table, dict.fromkeys(table, float))
    return tuple(sorted((int(size), float(value)) for size, value in numbers.items()))

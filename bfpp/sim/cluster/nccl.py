"""Algorithms and protocols of collectives, as NCCL's own model has them.

Theory of operation. A library has several algorithms, each with several protocols; each pair has a
latency and a bandwidth,

    seconds(size) = latency + per_byte * size,

and the library takes the pair of the least time for the message size. So the seconds of a
collective are the lower envelope of straight lines in the size: never decreasing, and concave. With
n members, a ring's data goes around in 1 direction (all-gather, reduce-scatter) or 2 (all-reduce):

    latency = base + directions * (steps of each level * seconds of a step there)
    per_byte = directions * (n - 1) / n / (share of the protocol * bandwidth of the narrowest level)

Numbers are those of NCCL 2.30 (src/graph/tuning.cc); a level's own `latency`, that of a ring's step
with the protocol Simple, scales those of its other steps.

- A **ring** takes a step to each next member, and enters and leaves each node once, on the ports of
  all its members there: most steps stay inside.
- A **tree** (all-reduces) is a chain in a node and a double binary tree over nodes: its latency
  grows with the logarithm of their number.
- **NVLS** (all-reduces) sums in the NVLink switches, and over nodes in a tree.
- **PAT** (all-gathers and reduce-scatters) is a tree over nodes with one member each. Its latency
  has a small part that grows linearly.
- **Hierarchical** is no algorithm of NCCL, but of other libraries: a reduce-scatter in each level,
  an all-reduce across, all-gathers back, one after the other.

Left out: caps by channel, which bind on none of the clusters that are known here, and the factors
of its correction table for trees at middle sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import log2, prod
from typing import NamedTuple

from bfpp.sim.cluster.group_location import GroupPlace
from bfpp.sim.cluster.network import NETWORK, NVLINK, PCIE, Level

MICRO = 1e-6

OPTIONS = 4096
"""Number of groups whose options are cached."""


class Protocol(NamedTuple):
    """A protocol's latencies in microseconds, and its shares of the bandwidth.

    `base` is what a collective takes before its first step, by algorithm; `hop` a step, by
    link and algorithm.
    """

    name: str
    base: dict[str, float]
    hop: dict[str, dict[str, float]]
    ring_share: float
    tree_share: float
    tree_share_in_node: float


TREE_SHARE = 0.92
"""Share of the rings' bandwidth that trees reach."""

PROTOCOLS = (
    Protocol(
        "Simple",
        {"ring": 8.4, "tree": 8.4},
        {
            NVLINK: {"ring": 3.4, "tree": 4.0},
            PCIE: {"ring": 5.7, "tree": 4.0},
            NETWORK: {"ring": 14.0, "tree": 14.0},
        },
        1.0,
        TREE_SHARE,
        TREE_SHARE,
    ),
    Protocol(
        "LL128",
        {"ring": 14.0, "tree": 14.0},
        {
            NVLINK: {"ring": 1.9, "tree": 1.25},
            PCIE: {"ring": 2.5, "tree": 1.9},
            NETWORK: {"ring": 4.0, "tree": 8.5},
        },
        0.92,
        TREE_SHARE * 120 / 128,
        TREE_SHARE * 7 / 9,
    ),
    Protocol(
        "LL",
        {"ring": 6.6, "tree": 6.8},
        {
            NVLINK: {"ring": 0.6, "tree": 0.6},
            PCIE: {"ring": 1.0, "tree": 1.0},
            NETWORK: {"ring": 2.7, "tree": 5.0},
        },
        0.5,
        TREE_SHARE / 3.8,
        TREE_SHARE / 3.8,
    ),
)
SIMPLE = PROTOCOLS[0]

NVLS_IN_NODE, NVLS_STEP = 25.0, 20.9
"""Microseconds of an all-reduce in the switches, and of a step of its tree over the network."""

PAT_BASE, PAT_MEMBER, PAT_STEPS, PAT_SHARE = 8.0, 2.8, 3.5, 0.75
"""Microseconds of PAT, and for each member; its steps in one of the network; of the bandwidth."""

FLAGS_OVER_NETWORK = 20.4e9
"""Bytes/s that LL reaches over more than two nodes (Intel hosts)."""


class CollectiveAlgorithm(NamedTuple):
    """An algorithm with a protocol: seconds of latency, and for each byte of the data.

    The level of that number is the narrowest.
    """

    algorithm: str
    protocol: str
    latency: float
    per_byte: float
    level: int

    def seconds(self, size: float) -> float:
        """Seconds for `size` bytes."""
        return self.latency + self.per_byte * size


@lru_cache(OPTIONS)
def options(
    directions: int, place: GroupPlace, levels: tuple[Level, ...], algorithms: tuple[str, ...]
) -> tuple[CollectiveAlgorithm, ...]:
    """All that a library has for a group; rings, which it always has, first.

    The data goes around in one of its `directions`, gathered or scattered, or in both, which is an
    all-reduce.
    """
    names = dict.fromkeys(("ring", *algorithms))
    return tuple(option for name in names for option in ALGORITHMS[name](directions, place, levels))


def _hop(level: Level, protocol: Protocol, algorithm: str) -> float:
    """Seconds of a step over a level."""
    usual = SIMPLE.hop[level.link]["ring"]
    return level.latency * protocol.hop[level.link][algorithm] / usual


def _narrowest(place: GroupPlace, levels: tuple[Level, ...]) -> tuple[float, int]:
    """The bandwidth of a ring, or of the like, and the level that limits it."""
    return min((_ring_bandwidth(place, levels, number), number) for number in place.crossed)


def _ring_bandwidth(place: GroupPlace, levels: tuple[Level, ...], number: int) -> float:
    """Bandwidth of rings over a level: between its units, on the ports of all members in one."""
    level = levels[number]
    inside = place.fewest[number - 1] if number else 1
    return inside * level.bandwidth_of(place.fewest[number]) * level.ring_efficiency


def _has_nodes(place: GroupPlace, levels: tuple[Level, ...]) -> bool:
    """True if some members reach each other without the network."""
    return any(levels[number].link != NETWORK for number in place.crossed)


def _flags(place: GroupPlace, levels: tuple[Level, ...]) -> float:
    """Upper bound of the protocol LL's bandwidth."""
    caps = [levels[number].flag_bandwidth for number in place.crossed]
    network = any(levels[number].link == NETWORK for number in place.crossed)
    return min([cap for cap in caps if cap] + [FLAGS_OVER_NETWORK] * network, default=float("inf"))


def _ring(
    directions: int, place: GroupPlace, levels: tuple[Level, ...]
) -> Iterator[CollectiveAlgorithm]:
    bandwidth, narrowest = _narrowest(place, levels)
    share = (place.members - 1) / place.members
    for protocol in PROTOCOLS:
        reached = protocol.ring_share * bandwidth
        if protocol.name == "LL":
            reached = min(reached, _flags(place, levels))
        # Where no steps stay in nodes, those over the network are not hidden behind them.
        shown = "ring" if _has_nodes(place, levels) else "tree"
        steps = sum(
            place.steps(number) * _hop(levels[number], protocol, shown) for number in place.crossed
        )
        yield CollectiveAlgorithm(
            "ring",
            protocol.name,
            MICRO * protocol.base["ring"] + directions * steps,
            directions * share / reached,
            narrowest,
        )


def _tree(
    directions: int, place: GroupPlace, levels: tuple[Level, ...]
) -> Iterator[CollectiveAlgorithm]:
    if directions == 1:
        return
    over_network = any(levels[number].link == NETWORK for number in place.crossed)
    loads = [
        (_tree_share(place, levels, number) / _ring_bandwidth(place, levels, number), number)
        for number in place.crossed
    ]
    load, narrowest = max(loads)
    for protocol in PROTOCOLS:
        reached = protocol.tree_share if over_network else protocol.tree_share_in_node
        per_byte = 2 * load / reached
        if protocol.name == "LL":
            per_byte = max(per_byte, 2 / _flags(place, levels))
        steps = sum(
            _depth(place, levels[number], number) * _hop(levels[number], protocol, "tree")
            for number in place.crossed
        )
        latency = MICRO * protocol.base["tree"] + 2 * steps
        yield CollectiveAlgorithm("tree", protocol.name, latency, per_byte, narrowest)


def _tree_share(place: GroupPlace, levels: tuple[Level, ...], number: int) -> float:
    """The share of the data that leaves a part of a level, one way.

    All of it passes through a chain. A tree has one edge fewer than nodes: on average, a root's
    share does not leave. (NCCL's own model has this of two nodes.)
    """
    parts = place.parts(number)
    return (parts - 1) / parts if levels[number].link == NETWORK else 1.0


def _depth(place: GroupPlace, level: Level, number: int) -> float:
    """Steps of a tree over a level: a chain in a node."""
    branches = place.branches(number)
    return log2(branches) if level.link == NETWORK else branches - 1


def _nvls(
    directions: int, place: GroupPlace, levels: tuple[Level, ...]
) -> Iterator[CollectiveAlgorithm]:
    switch = levels[0].switch_bandwidth
    outer = [number for number in place.crossed if number]
    if directions == 1 or not switch or 0 not in place.crossed:
        return
    latency = NVLS_IN_NODE / SIMPLE.hop[levels[0].link]["ring"] * levels[0].latency
    for number in outer:
        step = NVLS_STEP / SIMPLE.hop[levels[number].link]["ring"] * levels[number].latency
        latency += 2 * _depth(place, levels[number], number) * step
    share = 2 * (place.members - 1) / place.members
    narrow = [(share / _ring_bandwidth(place, levels, number), number) for number in outer]
    per_byte, level = max([(1 / (switch / levels[0].oversubscription), 0), *narrow])
    yield CollectiveAlgorithm("nvls", SIMPLE.name, latency, per_byte, level)


def _pat(
    directions: int, place: GroupPlace, levels: tuple[Level, ...]
) -> Iterator[CollectiveAlgorithm]:
    if directions == 2 or _has_nodes(place, levels):
        return
    bandwidth, narrowest = _narrowest(place, levels)
    latency = MICRO * (PAT_BASE + PAT_MEMBER * place.members) + sum(
        _depth(place, levels[number], number) * levels[number].latency / PAT_STEPS
        for number in place.crossed
    )
    share = (place.members - 1) / place.members
    yield CollectiveAlgorithm(
        "pat", SIMPLE.name, latency, share / (PAT_SHARE * bandwidth), narrowest
    )


def _hierarchical(
    directions: int, place: GroupPlace, levels: tuple[Level, ...]
) -> Iterator[CollectiveAlgorithm]:
    latency, costs = 0.0, []
    for number in place.crossed:
        level, branches = levels[number], place.branches(number)
        inner = prod(place.branches(each) for each in place.crossed if each < number)
        latency += MICRO * SIMPLE.base["ring"] + (branches - 1) * _hop(level, SIMPLE, "ring")
        reached = level.bandwidth_of(place.fewest[number]) * level.ring_efficiency
        costs.append(((branches - 1) / branches / inner / reached, number))
    per_byte = sum(cost for cost, _ in costs)
    widest = max(costs)[1]
    yield CollectiveAlgorithm(
        "hierarchical", SIMPLE.name, directions * latency, directions * per_byte, widest
    )


Algorithm = Callable[[int, GroupPlace, tuple[Level, ...]], Iterator[CollectiveAlgorithm]]

ALGORITHMS: dict[str, Algorithm] = {
    "ring": _ring,
    "tree": _tree,
    "nvls": _nvls,
    "pat": _pat,
    "hierarchical": _hierarchical,
}

USUAL = ("ring", "tree")
"""Algorithms of NCCL since its version 2.4."""

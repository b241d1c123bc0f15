"""Costs of collectives: a latency, and bytes through the levels of the network.

Theory of operation. Seconds are a latency and bytes over a bandwidth (Hockney, The communication
challenge for MPP, 1994), of whichever algorithm is the fastest. A collective starts once its last
member has come, and has its links to itself: contention is the engine's, not in these seconds.

- All-gathers, reduce-scatters and all-reduces take the algorithm and protocol of the least time
  (`bfpp.sim.cluster.nccl`).
- In an all-to-all each member sends an equal share of its data to each other member, to all at
  once. Traffic inside a unit of a level and traffic that leaves it flow at the same time, so the
  slowest level decides, rather than the sum over levels.
- Where a row is sent once to each place that has some of its k experts (`Copies`), k copies spread
  evenly over n places reach n (1 - (1 - 1 / n)^k) of them in expectation, and only those are sent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import Integers, Seconds
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.group_location import GroupPlace
from bfpp.sim.cluster.nccl import CollectiveAlgorithm, options
from bfpp.sim.engines.caching import once
from bfpp.sim.operators.operators import Collective, Copies, Way


def directions(way: Way) -> int:
    """Number of times the data goes around a ring: an all-reduce scatters and gathers it."""
    return 2 if way is Way.ALL_REDUCE else 1


def chosen(collective: Collective, place: GroupPlace, cluster: Cluster) -> CollectiveAlgorithm:
    """The algorithm and protocol that the library takes, for two members or more."""
    if collective.way is Way.ALL_TO_ALL:
        return _all_to_all(collective.copies, place, cluster)
    candidates = options(directions(collective.way), place, cluster.levels, cluster.algorithms)
    return min(candidates, key=lambda option: option.seconds(collective.bytes))


class Options(NamedTuple):
    """Algorithms at some places, as columns: latency, seconds a byte, narrowest level.

    Those of a place are from its `begin` to the next one's; a group of one has none.
    """

    begin: Integers
    latency: Seconds
    per_byte: Seconds
    level: Integers


@once
def options_at(cluster: Cluster, way: Way, *places: GroupPlace) -> Options:
    """The algorithms and protocols of one way to communicate, at each of some places."""
    choices = [
        options(directions(way), place, cluster.levels, cluster.algorithms)
        if place.members > 1
        else ()
        for place in places
    ]
    each = [(option.latency, option.per_byte, option.level) for some in choices for option in some]
    latency, per_byte, level = np.reshape(each, (-1, 3)).T
    begin = np.cumsum([0, *map(len, choices)], dtype=np.int32)
    return Options(begin, latency.copy(), per_byte.copy(), level.astype(np.int32))


def collective_seconds(collective: Collective, place: GroupPlace, cluster: Cluster) -> float:
    """Seconds of a collective that has its links to itself, once all members have come."""
    if place.members == 1:
        return 0.0
    return chosen(collective, place, cluster).seconds(collective.bytes)


def _all_to_all(copies: Copies | None, place: GroupPlace, cluster: Cluster) -> CollectiveAlgorithm:
    nodes, shares = place.units[0], []
    for number in place.crossed:
        level = cluster.levels[number]
        # What stays in a part of the level does not pass it, nor, if it leads nowhere, what leaves.
        inside = place.fewest[number - 1] if number else 1
        passing = (place.members if level.is_passed else place.fewest[number]) - inside
        moved = passing / place.members
        if copies and not number:  # what comes to a node goes to all its members there
            moved = (place.fewest[0] - 1) / place.fewest[0]
        moved *= crossing_share(copies, nodes if number else place.members)
        reached = level.ring_efficiency * level.exchange_efficiency
        shares.append((moved / (level.bandwidth_of(place.fewest[number]) * reached), number))
    per_byte, narrowest = max(shares)
    latency = cluster.levels[place.crossed[-1]].latency + cluster.levels[0].exchange_latency
    return CollectiveAlgorithm("all-to-all", "Simple", latency, per_byte, narrowest)


def crossing_share(copies: Copies | None, places: int) -> float:
    """The share of rows that are sent, if one is sent to each node (or device) that gets some.

    With `number` copies, spread evenly over the places they may go to: the expected number of
    places that get at least one.
    """
    if copies is None:
        return 1.0
    reached = max(1.0, copies.share_of_nodes * places)
    return reached * (1 - (1 - 1 / reached) ** copies.number) / copies.number

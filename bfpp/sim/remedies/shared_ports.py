"""Ports of ranks that a timeline's transfers shared, and what each would have taken alone.

A rank sends all that leaves it through one port, and receives all through another. Two transfers
that pass a port at the same time each get half of it, or what another port leaves them (max-min
fairly, `bfpp.sim.engines.ports`). So a transfer is worth the sum, over the time that it took, of
the share that it had.

Whether ports are shared, the timeline says itself: transfers between the same ranks are alike, so
the seconds that differ less from one to the next are those of the transfers, the others those of
what else was under way. Where nothing was, a measured timeline's ports are taken to be shared, as
network cards are; a simulated one's are not.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import Integers, Seconds
from bfpp.sim.engines.ports import max_min_rates
from bfpp.traces.timeline.timeline import MEASURED, Timeline

LIKE = 1.01
"""The ratio of two spreads that are the same but for rounding."""


def ports_of(graph: TaskGraph, tasks: Integers) -> Integers:
    """The ports that transfers pass: out of a rank, and into one."""
    return np.stack([graph.rank[tasks], graph.layout.pp + graph.peer[tasks]], axis=1)


def seconds_alone(timeline: Timeline, tasks: Integers, begin: Seconds) -> Seconds | None:
    """Seconds of these transfers with their ports to themselves; None if they share none.

    `begin` is when each can have begun to move.
    """
    taken, alone = timeline.end[tasks] - begin, _shares(timeline, tasks, begin)
    graph = timeline.graph
    links = (graph.operation[tasks], graph.rank[tasks], graph.peer[tasks])
    _, link = np.unique(np.stack(links), axis=1, return_inverse=True)
    spreads = [_spread(each, link) for each in (alone, taken)]
    if timeline.source == MEASURED:
        is_shared = spreads[0] <= LIKE * spreads[1]
    else:
        is_shared = LIKE * spreads[0] < spreads[1]
    return alone if is_shared else None


def _shares(timeline: Timeline, tasks: Integers, begin: Seconds) -> Seconds:
    """By transfer, the sum over its time of the share that it has of its narrowest port."""
    passed, end = ports_of(timeline.graph, tasks).tolist(), timeline.end[tasks]
    full = np.ones(2 * timeline.graph.layout.pp)
    worth = np.zeros(len(tasks))
    for since, until in pairwise(np.unique([*begin, *end]).tolist()):
        moving = np.flatnonzero((begin <= since) & (end >= until))
        shares = max_min_rates([passed[each] for each in moving], full)
        worth[moving] += np.array(shares) * (until - since)
    return worth


def _spread(seconds: Seconds, link: Integers) -> float:
    """The root mean square of relative deviations from the mean of the same link."""
    mean = np.bincount(link, seconds) / np.bincount(link)
    relative = seconds / np.maximum(mean, np.finfo(float).tiny)[link] - 1
    return float(np.sqrt(np.mean(relative**2)))

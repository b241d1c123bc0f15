"""Period: the time from step to step where many follow each other.

Theory of operation

A rank begins its next step once its own optimizer has ended, whatever the others do. So, in terms
of the times x at which ranks begin, rank i ends at the largest of x_j + L_ij over all ranks j,
where L_ij is the longest path from the begin of j to the end of i: a step is a linear map in
max-plus algebra. Repeated, the ends grow by the largest mean of a cycle in L, through the steps
and the ranks: the period. The core finds it without making L, in a few passes over the tasks
(`bfpp/core/source/period.c`).

Exact where tasks take as long in every step as they do in this one. (Baccelli et al.,
Synchronization and Linearity, 1992.)
"""

from __future__ import annotations

from bfpp.core import period as core
from bfpp.traces.timeline.timeline import Timeline


def period(timeline: Timeline) -> float:
    """Seconds from the end of a step to the end of the next, in the long run."""
    graph = timeline.graph
    return core.period(
        len(graph.lanes), graph.layout.pp, graph.lane, graph.peer_lane, graph.rank, graph.peer,
        *graph.dependencies, timeline.duration,
    )  # fmt: skip

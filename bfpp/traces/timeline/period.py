"""Period: the time from step to step where many follow each other.

Theory of operation

A rank begins its next step once its own optimizer has ended, whatever the others do. So, in terms
of the times x at which ranks begin, rank i ends at the largest of x_j + L_ij over all ranks j,
where L_ij is the longest path from the begin of j to the end of i: a step is a linear map in
max-plus algebra. Repeated, the ends grow by the largest mean of a cycle in L, through the steps
and the ranks: the period. The core finds it without making L, in a few passes over the tasks
(`bfpp/core/source/period.c`).

Where replicas differ, ranks are those of all replicas, and what they do together is a meeting: it
begins when all could.

Exact where tasks take as long in every step as they do in this one. (Baccelli et al.,
Synchronization and Linearity, 1992.)
"""

from __future__ import annotations

import numpy as np

from bfpp.core import period as core
from bfpp.schedules.columns import NONE, Flags, Offsets, Seconds
from bfpp.schedules.replicas.joint_graph import JointGraph, joined
from bfpp.schedules.replicas.joint_tasks import JointTasks
from bfpp.traces.timeline.timeline import Replicas, Timeline


def period(timeline: Timeline, replicas: Replicas | None = None) -> float:
    """Seconds from the end of a step to the end of the next, in the long run, of all replicas."""
    graph = timeline.graph
    if replicas is not None:
        joint = joined([each.graph for each in replicas.timelines], replicas.groups)
        return joint_period(joint, np.concatenate([it.duration for it in replicas.timelines]))
    return core.period(
        len(graph.lanes), graph.layout.pp, graph.lane, graph.peer_lane, graph.rank, graph.peer,
        *graph.dependencies, timeline.duration,
    )  # fmt: skip


def joint_period(graph: JointGraph, seconds: Seconds) -> float:
    """The same of a joint graph whose tasks take these seconds."""
    ranks = graph.replicas[0].layout.pp
    own = [replica * ranks for replica in range(len(graph.replicas))]
    both = list(zip(own, graph.replicas, strict=True))
    rank = np.concatenate([each.rank + first for first, each in both])
    peer = np.concatenate(
        [np.where(each.peer == NONE, NONE, each.peer + first) for first, each in both]
    )
    tasks, first = _begun(graph.tasks, peer != NONE)
    place, waits, (lane, no_lane) = tasks.numbered
    _, member = np.unique(graph.meeting[graph.tasks.meets], return_index=True)
    together = rank[graph.tasks.meets][member]
    # A meeting is between ranks, so that none of them ends with it.
    columns = (
        np.concatenate([rank, rank[first], together]),
        np.concatenate([peer, peer[first], together]),
        np.concatenate([seconds, np.zeros(len(first) + len(together))]),
    )
    of_node, other, taken = (_placed(each, place) for each in columns)
    return core.period(
        len(lane), ranks * len(graph.replicas), lane, no_lane, of_node.astype(np.int32),
        other.astype(np.int32), *waits, taken,
    )  # fmt: skip


def _begun(tasks: JointTasks, of_two: Flags) -> tuple[JointTasks, Offsets]:
    """Tasks where each meeting waits for the ranks of all to begin; and what may begin a rank.

    What is first on its rank, or of two, and meets others, gets a task of no time ahead of it.
    """
    has_before = np.zeros(len(tasks), dtype=bool)
    has_before[tasks.after] = True
    first = np.flatnonzero(tasks.meets & (of_two | ~has_before))
    if not len(first):
        return tasks, first
    ahead = len(tasks) + np.arange(len(first))
    before, after = np.concatenate([tasks.before, ahead]), np.concatenate([tasks.after, first])
    meeting = np.concatenate([tasks.meeting, np.full(len(first), NONE)])
    return JointTasks(before, after, meeting), first


def _placed(column: np.ndarray, place: np.ndarray) -> np.ndarray:
    placed = np.empty_like(column)
    placed[place] = column
    return placed

"""Time that the step would save without one of its waits.

Durations stay as they are in the timeline, and so does how long after its
blocker a measured task starts. One task no longer waits for anything
but its own rank's compute lane: the compute step that ends the wait, or the
blocking communication ahead of it that does.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE, Groups
from bfpp.sim.costs.measured.replay import AsItRan
from bfpp.sim.engines.compiled_engine import step_time
from bfpp.traces.explain.causes import Causes, Wait

MOST = 1000
"""Number of waits analysed, longest first."""


def waits_with_gains(causes: Causes, most: int = MOST) -> list[Wait]:
    """The waits of a timeline, the longest ones with their gain in seconds.

    A wait for the end of the training step has none.
    """
    waits = causes.waits
    longest = sorted(range(len(waits)), key=lambda at: waits[at].begin - waits[at].end)[:most]
    graph = causes.timeline.graph
    costs = AsItRan(causes).costs(graph)
    whole = step_time(graph, costs)
    with_gains = list(waits)
    for at in longest:
        if waits[at].task != NONE:
            without = without_wait(causes, waits[at])
            gain = whole - step_time(without, costs)
            # Without its wait, a blocking transfer also frees its peer's lane: not counted.
            most_gain = waits[at].end - waits[at].begin
            with_gains[at] = replace(waits[at], gain=min(max(gain, 0.0), most_gain))
    return with_gains


def without_wait(causes: Causes, wait: Wait) -> TaskGraph:
    """The graph in which the task at the end of a wait starts once its rank is free."""
    graph = causes.timeline.graph
    own = graph.lanes_of(wait.rank)[0]
    task, blocker = wait.task, wait.blocker
    while blocker != NONE and own in (graph.lane[blocker], graph.peer_lane[blocker]):
        if graph.is_compute[blocker]:
            break
        task, blocker = blocker, int(causes.blocker[blocker])
    lane, peer_lane = graph.lane.copy(), graph.peer_lane.copy()
    lane[task], peer_lane[task] = own, NONE
    return replace(
        graph, lane=lane, peer_lane=peer_lane, dependencies=_without(graph.dependencies, task)
    )


def _without(groups: Groups, group: int) -> Groups:
    """The groups, with one of them empty."""
    first, after = groups.start[group], groups.start[group + 1]
    start = groups.start.copy()
    start[group + 1 :] -= after - first
    return Groups(start, np.delete(groups.member, slice(first, after)))

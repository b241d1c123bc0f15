"""Align an imported trace with a prediction: its times on the tasks of the prediction's graph.

Theory of operation

A trace shows the passes of whole stages, their transfers and the update; its graph is that of one
replica. A prediction may know more: units of a stage, all-gathers, reductions. So the two graphs
differ, although the trace may be a run of the prediction's step: it is, where every rank has the
same passes in the same order in both.

1. A rank's compute tasks are joined into passes, by operation, stage and micro-batch, in both
   graphs. If these differ on any rank, there is no alignment.
2. A measured pass is divided over its units in proportion to their predicted durations.
3. Transfers and updates keep their measured times; they match by operation, rank, stage and
   micro-batch.
4. A task that the trace does not show takes no time, at the moment when it could have begun;
   `about` ("not_measured") counts these.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bfpp.schedules import Operation, TaskGraph
from bfpp.schedules.columns import Integers, Seconds, segment_starts
from bfpp.traces.profiles.import_profile import complete_times, counted_operations
from bfpp.traces.timeline.timeline import Timeline

LEAST = np.finfo(float).tiny
"""Units that are predicted to take no time divide their pass evenly."""


def align_trace(trace: Timeline, prediction: Timeline) -> Timeline | None:
    """The trace on the prediction's graph; None if it was not imported, or has other passes."""
    graph = prediction.graph
    if "not_measured" not in trace.about or graph.layout.pp != trace.graph.layout.pp:
        return None
    times = np.full((2, len(graph)), np.nan)
    for rank in range(graph.layout.pp):
        tasks, seen = graph.compute_tasks.of(rank), trace.graph.compute_tasks.of(rank)
        names, first = _passes(graph, tasks)
        if not np.array_equal(names, _passes(trace.graph, seen)[0]) or names.shape[1] != len(seen):
            return None
        times[:, tasks] = _divided(trace, seen, first, prediction.duration[tasks])
    numbers = _others(trace.graph)
    for name, task in _others(graph).items():
        if name in numbers:
            times[:, task] = trace.start[numbers[name]], trace.end[numbers[name]]
    start, end = complete_times(graph, *times)
    unknown = counted_operations(graph, start == end)
    return replace(
        trace, graph=graph, start=start, end=end, about={**trace.about, "not_measured": unknown}
    )


def _passes(graph: TaskGraph, tasks: Integers) -> tuple[Integers, Integers]:
    """A rank's passes, as (operation, stage, micro-batch) by pass, and the first task of each."""
    names = np.stack([graph.operation, graph.stage, graph.microbatch])[:, tasks]
    first = np.flatnonzero(segment_starts(*names)).astype(np.int32)
    return names[:, first], first


def _divided(trace: Timeline, seen: Integers, first: Integers, predicted: Seconds) -> Seconds:
    """Starts and ends of all units, (2, units): each pass divided as predicted."""
    predicted = np.maximum(predicted, LEAST)
    sizes = np.diff(np.append(first, len(predicted)))
    whole = np.repeat(np.add.reduceat(predicted, first), sizes)
    summed = np.cumsum(predicted)
    before = summed - predicted
    before -= np.repeat(before[first], sizes)
    start, duration = (np.repeat(each[seen], sizes) for each in (trace.start, trace.duration))
    ends = start + duration * np.minimum((before + predicted) / whole, 1)
    return np.stack([start + duration * before / whole, ends])


def _others(graph: TaskGraph) -> dict[tuple[int, ...], int]:
    """Transfers and updates, by operation, rank, stage and micro-batch."""
    tasks = np.flatnonzero(graph.is_transfer | (graph.operation == Operation.OPTIMIZER))
    names = np.stack([graph.operation, graph.rank, graph.stage, graph.microbatch])[:, tasks]
    return dict(zip(map(tuple, names.T.tolist()), tasks.tolist(), strict=True))

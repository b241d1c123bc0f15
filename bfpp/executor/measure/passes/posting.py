"""Seconds in which a GPU's host posts tasks, and in which the GPU runs them without waiting for it.

A host that launches kernels more slowly than the device runs them holds the device up: the time of
a pass on the device is then the host's. So the device's is that of passes which were posted whole
before they began.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bfpp.executor.measure.passes.runs import durations
from bfpp.executor.train.measured_timeline import END, POSTED, START
from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import Seconds


def device_seconds(
    graph: TaskGraph, columns: Sequence[Seconds], tasks: Sequence[int], *, is_shared: bool
) -> float:
    """Seconds of one of these tasks on its device alone; with its host where none was in time."""
    means = []
    for each in columns:
        is_posted = each[:, POSTED] + posting(graph, each, is_shared) <= each[:, START]
        if (chosen := is_posted[:, tasks]).any():
            means.append((each[:, END] - each[:, START])[:, tasks][chosen].mean())
    return float(np.median(means)) if means else durations(columns, tasks)


def host_seconds(
    graph: TaskGraph, columns: Sequence[Seconds], tasks: Sequence[int], *, is_shared: bool
) -> float:
    """Seconds of a host to post one of these tasks: the mean in a step, of those the median."""
    means = [np.nanmean(posting(graph, each, is_shared)[:, tasks]) for each in columns]
    return float(np.median(means))


def posting(graph: TaskGraph, columns: Seconds, is_shared: bool) -> Seconds:
    """Seconds of posting each task, by replica: until the host of its rank posts another.

    If it `is_shared`, all ranks and replicas have one host. Of the last task it is not known.
    """
    posted = columns[:, POSTED]
    host = np.arange(len(posted))[:, None] * graph.layout.pp + graph.rank
    hosts = np.zeros(posted.size, dtype=int) if is_shared else host.ravel()
    order = np.lexsort((posted.ravel(), hosts))
    has_next = np.diff(hosts[order]) == 0
    seconds = np.full(posted.size, np.nan)
    seconds[order[:-1]] = np.where(has_next, np.diff(posted.ravel()[order]), np.nan)
    return seconds.reshape(posted.shape)

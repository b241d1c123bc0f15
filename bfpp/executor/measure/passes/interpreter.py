"""Seconds of PyTorch's runtime before a pass, to post an end of a transfer, and until it arrives.

It interprets a rank's order on the thread that computes, posts included. A run of the model's own
layers tells, after whose passes caches hold other things: between small ones it takes a fourth.
It is CPU time, which has no waiting for transfers in it. Transfers are under way while passes
compute: where these have all cores, a transfer takes longer than alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean

import numpy as np

from bfpp.executor.measure.passes.compute import chosen_layers, with_layers
from bfpp.executor.measure.passes.fitting import Line, fit_line
from bfpp.executor.measure.passes.runs import MICROBATCHES, Bench, Profile
from bfpp.executor.plan.plan import Plan
from bfpp.executor.train.measured_timeline import END, POSTED, START
from bfpp.schedules import Layout, Operation, TaskGraph, build_graph
from bfpp.schedules.columns import Seconds

Channel = tuple[int, int]
"""The sender and the receiver of a transfer."""


def interpreted(plan: Plan, bench: Bench, own: Profile) -> Profile:
    """Seconds of PyTorch's runtime to begin a task, and of transfers; `own` are those of ours.

    A pass that waits for a transfer begins as soon after it as with ours, and is interpreted then.
    """
    chosen = chosen_layers(plan)
    ranks = plan.graph.layout.pp
    layout = Layout(ranks, MICROBATCHES, len(chosen) // ranks)
    graph = build_graph("breadth-first", layout, bench.communication)
    small = with_layers(plan, chosen, graph)
    columns = bench.run_passes(small)
    if not columns:  # only the first process knows the times of all
        return {}
    line = line_of([each for step in columns for each in work(graph, step[0])])
    wake = own["dispatch"]["wake"]
    late = defaultdict(list)
    for channel, sent, seconds in (each for step in columns for each in arrivals(small, step[0])):
        late[channel].append((sent, seconds - wake))
    channels = [
        slower(channel, late[channel["sender"], channel["receiver"]]) for channel in own["channels"]
    ]
    dispatch = {"next": line.fixed, "wake": line.fixed + wake, "post": line.slope}
    return {"dispatch": dispatch, "channels": channels}


def work(graph: TaskGraph, columns: Seconds) -> Iterator[tuple[int, float]]:
    """Ends of transfers posted between two passes of a rank, and seconds of work there."""
    ends = graph.ends_posted_before
    for rank in range(graph.layout.pp):
        for task in graph.compute_tasks.of(rank)[1:].tolist():
            yield int(ends[task]), float(columns[START, task] - columns[POSTED, task])


def line_of(points: Sequence[tuple[int, float]]) -> Line:
    """Seconds by how many ends are posted; of as many, the median."""
    by_ends: dict[int, list[float]] = defaultdict(list)
    for ends, seconds in points:
        by_ends[ends].append(seconds)
    return fit_line([(float(ends), float(np.median(each))) for ends, each in by_ends.items()])


def arrivals(plan: Plan, columns: Seconds) -> Iterator[tuple[Channel, int, float]]:
    """Transfers that a pass waited for: bytes, and seconds from when both ends were posted."""
    graph, forms = plan.graph, plan.forms
    for rank in range(graph.layout.pp):
        for before, task in pairwise(graph.compute_tasks.of(rank).tolist()):
            for each in graph.dependencies.of(task).tolist():
                ready = columns[END, graph.dependencies.of(each)].max(initial=0.0)
                if graph.is_transfer[each] and ready >= columns[END, before]:
                    is_gradient = graph.operation[each] == Operation.TRANSFER_GRADIENTS
                    sent = forms[graph.unit[each] - is_gradient].values.shape.bytes
                    channel = int(graph.rank[each]), int(graph.peer[each])
                    yield channel, sent, float(columns[POSTED, task] - ready)


def slower(channel: Profile, late: Sequence[tuple[int, float]]) -> Profile:
    """A channel with the latency of these transfers: bytes, and seconds."""
    if not late:
        return channel
    latency = fmean(seconds - sent / channel["bandwidth"] for sent, seconds in late)
    return channel | {"latency": max(latency, channel["latency"])}

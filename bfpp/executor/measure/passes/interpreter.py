"""Seconds of work of PyTorch's runtime before a pass, and to post each end of a transfer.

It interprets a rank's order on the thread that computes, posts included. A run of the model's own
layers tells, after whose passes caches hold other things: between small ones it takes a fourth.
It is CPU time, which has no waiting for transfers in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bfpp.executor.measure.passes.compute import chosen_layers, with_layers
from bfpp.executor.measure.passes.fitting import Line, fit_line
from bfpp.executor.measure.passes.runs import MICROBATCHES, Bench
from bfpp.executor.plan.plan import Plan
from bfpp.executor.train.measured_timeline import POSTED, START
from bfpp.schedules import Layout, TaskGraph, build_graph
from bfpp.schedules.columns import Seconds


def interpreted(plan: Plan, bench: Bench, own: Mapping[str, float]) -> dict[str, float]:
    """Seconds of PyTorch's runtime to begin a task; `own` are those of ours.

    A pass that waits for a transfer begins as soon after it as with ours, and is interpreted then.
    """
    chosen = chosen_layers(plan)
    ranks = plan.graph.layout.pp
    layout = Layout(ranks, MICROBATCHES, len(chosen) // ranks)
    graph = build_graph("breadth-first", layout, bench.communication)
    columns = bench.run_passes(with_layers(plan, chosen, graph))
    if not columns:  # only the first process knows the times of all
        return {}
    line = line_of([each for step in columns for each in work(graph, step[0])])
    return {"next": line.fixed, "wake": line.fixed + own["wake"], "post": line.slope}


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

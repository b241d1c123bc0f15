"""Metrics of ranks by numpy and by the compiled loop, of the same graphs and times."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from time import process_time

from benchmarks.helpers.measure import Results, medians
from benchmarks.helpers.steps import COSTS, load_compiled_loops
from bfpp.schedules import Communication, Layout, Sharding, TaskGraph, build_graph
from bfpp.sim.engines import compiled_engine
from bfpp.sim.engines.compiled_engine import Times
from bfpp.sim.engines.compiled_timeline import CompiledTimeline
from bfpp.traces.timeline.metrics import rank_metrics
from bfpp.traces.timeline.timeline import Timeline

RUNS = 7
RANKS, LOOPS = 64, 4
CASES = [("breadth-first", 120), ("breadth-first", 980), ("depth-first", 960)]
KINDS = Timeline, CompiledTimeline
"""By numpy, and by the loop."""


def run() -> Results:
    load_compiled_loops()
    rows = []
    for schedule, microbatches in CASES:
        layout = Layout(RANKS, microbatches, LOOPS)
        graph = build_graph(schedule, layout, Communication(Sharding.FULL))
        times = compiled_engine.times(graph, COSTS.costs(graph))
        first = [partial(metrics_of_new_graph, kind, graph, times) for kind in KINDS]
        again = [partial(metrics_of, kind, graph, times) for kind in KINDS]
        taken = medians(RUNS, *first, *again, clock=process_time)
        by_numpy, by_loop, numpy_again, loop_again = (each / len(graph) * 1e9 for each in taken)
        rows.append(
            {
                "schedule": schedule,
                "tasks": f"{len(graph):,}",
                "numpy (ns a task)": f"{by_numpy:.0f}",
                "loop (ns a task)": f"{by_loop:.0f}",
                "ratio": f"{by_numpy / by_loop:.1f}",
                "numpy, once more": f"{numpy_again:.0f}",
                "loop, once more": f"{loop_again:.0f}",
            }
        )
    return Results(
        f"Metrics of ranks: {RANKS} ranks, {LOOPS} loops, fully sharded",
        "a third of version 0.1's time at a million tasks",
        rows,
        [
            f"CPU time, compiled loops loaded; medians of {RUNS}, in turn.",
            "Once more: of a new timeline, once the graph has its compute tasks by rank.",
        ],
    )


def metrics_of(kind: type[Timeline], graph: TaskGraph, times: Times) -> None:
    """Work out the metrics of a timeline that nothing is known of yet."""
    rank_metrics(kind(graph, *times, source=compiled_engine.SOURCE))


def metrics_of_new_graph(kind: type[Timeline], graph: TaskGraph, times: Times) -> None:
    """The same, with a graph that nothing is known of either."""
    metrics_of(kind, replace(graph), times)

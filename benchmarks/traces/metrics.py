"""Metrics of ranks by numpy and by the core, of the same graphs and times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import process_time

from benchmarks.helpers.measure import Results, medians
from benchmarks.helpers.steps import COSTS
from benchmarks.traces.rank_times_by_numpy import rank_times_by_numpy
from bfpp.core.rank_times import RankTimes
from bfpp.schedules import Communication, Layout, Sharding, TaskGraph, build_graph
from bfpp.schedules.columns import Seconds
from bfpp.sim.engines import compiled_engine
from bfpp.sim.engines.compiled_engine import Times
from bfpp.traces.timeline.rank_times import rank_times

RUNS = 7
RANKS, LOOPS = 64, 4
CASES = [("breadth-first", 120), ("breadth-first", 980), ("depth-first", 960)]
KINDS = rank_times_by_numpy, rank_times


def run() -> Results:
    rows = []
    for schedule, microbatches in CASES:
        layout = Layout(RANKS, microbatches, LOOPS)
        graph = build_graph(schedule, layout, Communication(Sharding.FULL))
        times = compiled_engine.times(graph, COSTS.costs(graph))
        first = [partial(of_new_graph, kind, graph, times) for kind in KINDS]
        again = [partial(kind, graph, *times) for kind in KINDS]
        taken = medians(RUNS, *first, *again, clock=process_time)
        by_numpy, by_core, numpy_again, core_again = (each / len(graph) * 1e9 for each in taken)
        rows.append(
            {
                "schedule": schedule,
                "tasks": f"{len(graph):,}",
                "numpy (ns a task)": f"{by_numpy:.0f}",
                "core (ns a task)": f"{by_core:.0f}",
                "ratio": f"{by_numpy / by_core:.1f}",
                "numpy, once more": f"{numpy_again:.0f}",
                "core, once more": f"{core_again:.0f}",
            }
        )
    return Results(
        f"When ranks compute: {RANKS} ranks, {LOOPS} loops, fully sharded",
        "a third of numpy's time at a million tasks",
        rows,
        [
            f"CPU time; medians of {RUNS}, in turn.",
            "Once more: once the graph has its compute tasks by rank.",
        ],
    )


def of_new_graph(
    kind: Callable[[TaskGraph, Seconds, Seconds], RankTimes], graph: TaskGraph, times: Times
) -> None:
    """Work out the times of ranks of a graph that nothing is known of yet."""
    kind(replace(graph), *times)

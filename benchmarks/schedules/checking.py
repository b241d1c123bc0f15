"""The checker against its rules in their plainest form, and a million tasks on one core."""

from __future__ import annotations

import time
import tracemalloc
from functools import partial

from benchmarks.helpers.measure import Results, medians
from benchmarks.schedules.plain_checker import plain_violations
from bfpp.schedules import Communication, Layout, Sharding, TaskGraph, build_graph
from bfpp.schedules.validity import violations

LOOPS = {"breadth-first": 4, "depth-first": 4, "1f1b": 1}
SMALL, LARGE = (16, 512), (64, 4096)
"""Ranks, and cells of a rank: in the large graph, the plain clocks alone would take 1.6 GB."""


def run() -> Results:
    rows = []
    for name, loops in LOOPS.items():
        for sharding in Sharding:
            graph, large = (
                build_graph(name, Layout(pp, cells // loops, loops), Communication(sharding))
                for pp, cells in (SMALL, LARGE)
            )
            plain, checked = medians(
                3, partial(plain_violations, graph), partial(violations, graph)
            )
            rows.append(
                {
                    "schedule": name,
                    "sharding": sharding,
                    "tasks": f"{len(graph):,}",
                    "plain (s)": f"{plain:.2f}",
                    "checker (s)": f"{checked:.3f}",
                    "ratio": f"{plain / checked:.0f}",
                    "tasks, large": f"{len(large):,}",
                    "checker, large (s)": f"{seconds_of(large):.1f}",
                    "memory, large (MB)": f"{megabytes_of(large):.0f}",
                }
            )
    return Results(
        "Checking: short proofs against a clock of all lanes for each task",
        "a million tasks in at most 10 s of one core",
        rows,
        [
            "The plain rules are those that ask for the order of tasks, the checker's are all.",
            "Medians of 3, in turn; one check of the large graph, in processor seconds.",
            "Memory is the peak of a check, without the graph.",
        ],
    )


def seconds_of(graph: TaskGraph) -> float:
    """Processor time, as the machine may be busy."""
    begun = time.process_time()
    if violations(graph):
        raise AssertionError(graph)
    return time.process_time() - begun


def megabytes_of(graph: TaskGraph) -> float:
    tracemalloc.start()
    try:
        violations(graph)
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()

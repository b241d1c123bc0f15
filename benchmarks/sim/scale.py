"""Generation, lowering and evaluation of one step, from ten thousand to ten million tasks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from statistics import median
from time import perf_counter

from benchmarks.helpers.measure import Results, forget_peak_memory, in_fresh_process, memory
from benchmarks.helpers.steps import COSTS, crowded
from bfpp.schedules import Communication, Layout, Sharding, find_schedule, lower
from bfpp.sim.engines import compiled_engine

RANKS, LOOPS = 64, 4
CASES = [
    ("breadth-first", 10, "sweep"),
    ("breadth-first", 98, "sweep"),
    ("breadth-first", 980, "sweep"),
    ("depth-first", 960, "sweep"),
    ("breadth-first", 9800, "sweep"),
    ("breadth-first", 98, "replay"),
    ("breadth-first", 980, "replay"),
]
"""Schedule, micro-batches (1,022 tasks each), and the loop that evaluates."""

MEMORY_FROM = 100_000
"""Tasks below which a process's own noise hides the graph."""


def run() -> Results:
    rows = []
    for case in CASES:
        measured = in_fresh_process(__name__, *case)
        tasks, total = measured["tasks"], measured["total"]
        rows.append(
            {
                "schedule": case[0],
                "tasks": f"{tasks:,}",
                "evaluated by": case[2],
                "generate (s)": f"{measured['generate']:.4f}",
                "lower (s)": f"{measured['lower']:.4f}",
                "evaluate (s)": f"{measured['evaluate']:.4f}",
                "total (s)": f"{total:.4f}",
                "ns a task": f"{total / tasks * 1e9:.0f}",
                "peak bytes a task": (
                    f"{measured['peak'] / tasks:.0f}" if tasks >= MEMORY_FROM else "-"
                ),
            }
        )
    return Results(
        f"Scale: {RANKS} ranks, {LOOPS} loops, fully sharded",
        "1,000,000 tasks in about a second; at most 200 bytes a task; the same cost at every size",
        rows,
        [
            "Each row in a process of its own; medians of 3 or 5.",
            "Peak: largest resident memory of the process, less that before generation.",
            "replay: transfers share one port for 8 ranks, so that flows meet in it.",
        ],
    )


def once(schedule: str, layout: Layout, evaluated_by: str) -> Iterator[tuple[int, float]]:
    """Generate, lower, evaluate: after each, the tasks so far and the time."""
    yield 0, perf_counter()
    orders = find_schedule(schedule).orders(layout)
    yield 0, perf_counter()
    graph = lower(orders, layout, Communication(Sharding.FULL), schedule)
    yield len(graph), perf_counter()
    del orders
    costs = crowded(graph) if evaluated_by == "replay" else COSTS.costs(graph)
    compiled_engine.times(graph, costs)
    yield len(graph), perf_counter()


def main(schedule: str, microbatches: str, evaluated_by: str) -> None:
    """Measure one case; prints JSON."""
    layout = Layout(RANKS, int(microbatches), LOOPS)
    forget_peak_memory()
    before = memory("VmRSS")
    marks = [list(once(schedule, layout, evaluated_by))]
    peak = memory("VmHWM") - before
    tasks = marks[0][-1][0]
    marks += [list(once(schedule, layout, evaluated_by)) for _ in range(3 if tasks > 2e6 else 5)]
    times = [[time for _, time in run] for run in marks[1:]]
    phases = {
        name: median(run[at + 1] - run[at] for run in times)
        for at, name in enumerate(("generate", "lower", "evaluate"))
    }
    total = median(run[-1] - run[0] for run in times)
    print(json.dumps({"tasks": tasks, "peak": peak, "total": total, **phases}))


if __name__ == "__main__":
    main(*sys.argv[1:])

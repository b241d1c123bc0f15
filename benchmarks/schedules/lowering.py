"""Columns against one Python object a task: generation and lowering of the same graph."""

from __future__ import annotations

import gc
from functools import partial

from benchmarks.helpers.measure import Results, medians
from benchmarks.schedules.object_lowering import ObjectGraph, lower_to_objects
from bfpp.schedules import Communication, Layout, Sharding, build_graph, find_schedule

MICROBATCHES = (8, 96, 960)
COMMUNICATION = Communication(Sharding.FULL)


def run() -> Results:
    rows = []
    for schedule in ("breadth-first", "depth-first"):
        for microbatches in MICROBATCHES:
            layout = Layout(8, microbatches, 4)
            graph = build_graph(schedule, layout, COMMUNICATION)
            columns, objects, uncollected = medians(
                5,
                partial(build_graph, schedule, layout, COMMUNICATION),
                partial(objects_of, schedule, layout),
                partial(_without_collector, schedule, layout),
            )
            rows.append(
                {
                    "schedule": schedule,
                    "tasks": f"{len(graph):,}",
                    "objects (s)": f"{objects:.4f}",
                    "objects, no collector (s)": f"{uncollected:.4f}",
                    "columns (s)": f"{columns:.4f}",
                    "ratio": f"{objects / columns:.1f}",
                    "ratio, no collector": f"{uncollected / columns:.1f}",
                }
            )
    return Results(
        "Lowering: columns against one object a task",
        "at least 10 times as fast",
        rows,
        ["From the schedule's generators to the whole graph; medians of 5, in turn."],
    )


def objects_of(schedule: str, layout: Layout) -> ObjectGraph:
    """The graph in objects."""
    steps = find_schedule(schedule).steps
    orders = [steps(layout, rank) for rank in range(layout.pp)]
    return lower_to_objects(orders, layout, COMMUNICATION)


def _without_collector(schedule: str, layout: Layout) -> None:
    gc.disable()
    try:
        objects_of(schedule, layout)
    finally:
        gc.enable()

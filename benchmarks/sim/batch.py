"""Many costs on one graph in one call, against a graph for each."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks.helpers.measure import Results, medians
from benchmarks.helpers.steps import COSTS
from bfpp.schedules import Communication, Layout, Sharding, TaskGraph, build_graph
from bfpp.sim.engines.compiled_engine import step_times, times
from bfpp.sim.engines.cost_model import Costs

COUNT = 50
MICROBATCHES = (16, 128, 1024)


def run() -> Results:
    random = np.random.default_rng(0)
    rows = []
    for microbatches in MICROBATCHES:
        layout = Layout(8, microbatches, 4)
        graph = _build(layout)
        costs = COSTS.costs(graph)
        vectors = [
            replace(costs, seconds=costs.seconds * random.uniform(0.5, 2, len(graph)))
            for _ in range(COUNT)
        ]
        together, rebuilt = medians(
            5,
            partial(step_times, graph, vectors),
            partial(_rebuilding, layout, vectors),
        )
        np.testing.assert_array_equal(step_times(graph, vectors), _rebuilding(layout, vectors))
        rows.append(
            {
                "tasks": f"{len(graph):,}",
                "vectors": COUNT,
                "one call (s)": f"{together:.4f}",
                "rebuilding (s)": f"{rebuilt:.4f}",
                "ratio": f"{rebuilt / together:.1f}",
                "ns a task and vector": f"{together / len(graph) / COUNT * 1e9:.1f}",
            }
        )
    return Results(
        f"Batch: {COUNT} costs on one graph",
        "none",
        rows,
        ["Without contention; medians of 5, in turn."],
    )


def _build(layout: Layout) -> TaskGraph:
    return build_graph("breadth-first", layout, Communication(Sharding.FULL))


def _rebuilding(layout: Layout, vectors: list[Costs]) -> list[float]:
    return [float(times(_build(layout), costs)[1].max()) for costs in vectors]

"""The compiled engine against SimPy, on the same graphs and costs."""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.helpers.measure import Results, medians
from benchmarks.helpers.steps import COSTS, crowded
from bfpp.schedules import Communication, Layout, Sharding, build_graph
from bfpp.sim.engines import compiled_engine, simpy_engine

MICROBATCHES = (8, 40, 200)
"""Of 16 ranks with 4 loops, fully sharded: 254 tasks a micro-batch, and the gathers."""


def run() -> Results:
    rows = []
    for microbatches in MICROBATCHES:
        layout = Layout(16, microbatches, 4)
        for price, evaluated_by in ((COSTS.costs, "sweep"), (crowded, "replay")):
            graph = build_graph("breadth-first", layout, Communication(Sharding.FULL))
            costs = price(graph)
            slow, fast = medians(
                3,
                partial(simpy_engine.simulate, graph, costs),
                partial(compiled_engine.simulate, graph, costs),
            )
            np.testing.assert_allclose(
                simpy_engine.simulate(graph, costs).end,
                compiled_engine.simulate(graph, costs).end,
                rtol=1e-9,
            )
            rows.append(
                {
                    "tasks": f"{len(graph):,}",
                    "evaluated by": evaluated_by,
                    "SimPy (s)": f"{slow:.4f}",
                    "compiled (s)": f"{fast:.6f}",
                    "ratio": f"{slow / fast:,.0f}",
                }
            )
    return Results(
        "Engines: compiled against SimPy",
        "at least 100 times as fast",
        rows,
        ["Both engines' times agree to 1e-9; medians of 3, in turn."],
    )

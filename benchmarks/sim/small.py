"""Many small steps, as a search runs them: each built, evaluated and summed up."""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from statistics import median

from benchmarks.helpers.measure import Results, seconds
from benchmarks.helpers.steps import COSTS
from bfpp.schedules import Communication, Layout, Sharding, build_graph, find_schedule
from bfpp.sim.engines.compiled_engine import simulate
from bfpp.traces.timeline.metrics import bubble

STEPS, CORES, AT_ONCE, RUNS = 500, 2, 10, 5
LEAST, MOST = 1_000, 10_000

Case = tuple[str, Layout, Communication]


def cases() -> list[Case]:
    """Steps of 4 to 16 ranks and one to ten thousand tasks, of all schedules and shardings."""
    possible = [
        (name, find_schedule(name).divided(ranks, ranks * rounds, stages), sharding)
        for name, ranks, stages, rounds, sharding in product(
            ("gpipe", "1f1b", "depth-first", "breadth-first"),
            (4, 8, 16),
            (1, 2, 4),
            range(1, 65),
            Sharding,
        )
    ]
    random.Random(0).shuffle(possible)
    drawn: list[Case] = []
    for name, layout, sharding in possible:
        if 2 * layout.stages * layout.microbatches > MOST:
            continue
        communication = Communication(sharding)
        if LEAST <= len(build_graph(name, layout, communication)) <= MOST:
            drawn.append((name, layout, communication))
        if len(drawn) == STEPS:
            break
    return drawn


def evaluate(some: list[Case]) -> list[tuple[int, float]]:
    """Tasks and bubble of each."""
    results = []
    for name, layout, communication in some:
        graph = build_graph(name, layout, communication)
        results.append((len(graph), bubble(simulate(graph, COSTS.costs(graph)))))
    return results


def run() -> Results:
    chosen = cases()
    tasks = [tasks for tasks, _ in evaluate(chosen)]
    parts = [chosen[at : at + AT_ONCE] for at in range(0, STEPS, AT_ONCE)]
    with ProcessPoolExecutor(CORES, get_context("spawn")) as pool:
        list(pool.map(evaluate, parts))
        taken = [
            (seconds(lambda: evaluate(chosen)), seconds(lambda: list(pool.map(evaluate, parts))))
            for _ in range(RUNS)
        ]
    alone, together = (median(column) for column in zip(*taken, strict=True))
    rows = [
        {"cores": cores, "seconds": f"{time:.3f}", "steps a second": f"{STEPS / time:,.0f}"}
        for cores, time in ((1, alone), (CORES, together))
    ]
    mean = sum(tasks) / len(tasks)
    return Results(
        f"Small steps: {STEPS} of {min(tasks):,} to {max(tasks):,} tasks ({mean:,.0f} on average)",
        f"500 a second on {CORES} cores",
        rows,
        ["Workers started; medians of 5, in turn."],
    )

"""Seconds of a forward and a backward pass of each layer, and of a stage besides.

All ranks compute at the same time and transfer to one another, as in a run:
where cores are shared, a pass beside transfers takes longer than one alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from bfpp.executor.calibration.fitting import least_squares
from bfpp.executor.calibration.runs import (
    MICROBATCHES,
    Bench,
    Profile,
    durations,
    tasks_of,
)
from bfpp.executor.plan import Plan
from bfpp.schedules import Layout, Operation, build_graph

ALIKE = 3
"""Layers of a kind that are run: to know what one more takes."""

COARSE = 3
"""Layers of a stage where stages have several."""


def measure_compute(plan: Plan, bench: Bench) -> Profile:
    """Seconds of a forward and a backward pass of each layer, and of a stage besides."""
    ranks = plan.graph.layout.pp
    kinds = _kinds(plan)
    runs = [(number, count) for number, group in groupby(kinds) for count in [len(list(group))]]
    chosen = [
        layer
        for (kind, count), first in zip(runs, _firsts(runs), strict=True)
        for layer in range(first, first + min(count, ALIKE * ranks))
    ]
    model = replace(
        plan.model, layers=[plan.model.layers[each] for each in chosen], attached=(0, 0)
    )
    rows: list[list[float]] = []
    seconds: dict[Operation, list[float]] = {Operation.FORWARD: [], Operation.BACKWARD: []}
    finest = len(chosen) // ranks
    for stages in (finest, max(1, finest // COARSE)):
        graph = build_graph("breadth-first", Layout(ranks, MICROBATCHES, stages))
        small = replace(plan, graph=graph, model=model)
        columns = bench.run(small)
        for stage, layers in enumerate(small.cuts if columns else ()):
            here = [kinds[chosen[layer]] for layer in layers]
            rows.append([1.0, *(float(here.count(kind)) for kind in range(max(kinds) + 1))])
            for operation, found in seconds.items():
                found.append(durations(columns, tasks_of(small.graph, operation, stage)))
    if not rows:  # only the first process knows the times of all
        return {}
    known = {operation: least_squares(rows, found) for operation, found in seconds.items()}
    sizes = _sizes(plan)
    measured = [
        {
            "count": count,
            "forward": known[Operation.FORWARD][1 + kind],
            "backward": known[Operation.BACKWARD][1 + kind],
            "parameters": sizes[first][0],
            "bytes": sizes[first][1],
        }
        for (kind, count), first in zip(runs, _firsts(runs), strict=True)
    ]
    passes = {"forward": known[Operation.FORWARD][0], "backward": known[Operation.BACKWARD][0]}
    return {"layers": measured, "passes": passes}


def _kinds(plan: Plan) -> list[int]:
    """For each layer, the number of its kind: layers of a kind have the same parts and shapes."""
    numbers: dict[str, int] = {}
    found = []
    for number in range(len(plan.model.layers)):
        module = plan.outline(number)
        shapes = [(name, tuple(value.shape)) for name, value in module.named_parameters()]
        found.append(numbers.setdefault(f"{module} {shapes}", len(numbers)))
    return found


def _firsts(runs: Sequence[tuple[int, int]]) -> list[int]:
    """The first layer of each run of layers of a kind."""
    counts = [count for _, count in runs]
    return [sum(counts[:at]) for at in range(len(counts))]


def _sizes(plan: Plan) -> list[tuple[int, int]]:
    """For each layer, its parameters, and the bytes that it hands on for a micro-batch."""
    single = replace(
        plan,
        model=replace(plan.model, attached=(0, 0)),
        graph=build_graph("breadth-first", Layout(1, 1, len(plan.model.layers))),
    )
    found = []
    for number, shape in enumerate(single.shapes):
        module = plan.outline(number)
        parameters = sum(value.numel() for value in module.parameters())
        found.append((parameters, shape.elements * shape.dtype.itemsize))
    return found

"""Seconds of a forward and a backward pass of each layer, and of a stage besides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import torch
import torch.distributed as dist

from executor.backends.local import LocalBackend
from executor.calibration.fitting import least_squares
from executor.calibration.runs import MICROBATCHES, WARM_UP, Effort, Profile, durations, tasks_of
from executor.lanes import Threads
from executor.model import build
from executor.plan import Plan
from executor.training import Trainer
from schedules import Layout, Operation, build_graph
from schedules.columns import Seconds

ALIKE = 3
"""Layers of a kind that are run: to know what one more takes."""

COARSE = 3
"""Layers of a stage where stages have several."""


def measure_compute(plan: Plan, effort: Effort) -> Profile:
    """Seconds of a forward and a backward pass of each layer, and of a stage besides."""
    kinds = _kinds(plan)
    runs = [(number, count) for number, group in groupby(kinds) for count in [len(list(group))]]
    chosen = [
        layer
        for (kind, count), first in zip(runs, _firsts(runs), strict=True)
        for layer in range(first, first + min(count, ALIKE))
    ]
    model = replace(
        plan.model, layers=[plan.model.layers[each] for each in chosen], attached=(0, 0)
    )
    rows: list[list[float]] = []
    seconds: dict[Operation, list[float]] = {Operation.FORWARD: [], Operation.BACKWARD: []}
    for stages in (len(chosen), max(1, len(chosen) // COARSE)):
        layout = Layout(1, MICROBATCHES, stages)
        small = replace(
            plan, graph=build_graph("breadth-first", layout), model=model, data_parallel=1
        )
        columns = _own_columns(small, effort.steps)
        for stage, layers in enumerate(small.cuts):
            here = [kinds[chosen[layer]] for layer in layers]
            rows.append([1.0, *(float(here.count(kind)) for kind in range(max(kinds) + 1))])
            for operation, found in seconds.items():
                found.append(durations(columns, tasks_of(small.graph, operation, stage)))
    known = {operation: _shared(least_squares(rows, found)) for operation, found in seconds.items()}
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


def _own_columns(plan: Plan, steps: int) -> list[Seconds]:
    """A run of all stages in this process, beside those of the other processes."""
    backend = LocalBackend(plan, Threads())
    trainer = Trainer(plan, backend)
    for _ in trainer.run(range(WARM_UP + steps)):
        pass
    trainer.close()
    return [columns for _, columns in trainer.columns][WARM_UP:]


def _kinds(plan: Plan) -> list[int]:
    """For each layer, the number of its kind: layers of a kind have the same parts and shapes."""
    numbers: dict[str, int] = {}
    found = []
    for number in range(len(plan.model.layers)):
        with torch.device("meta"):
            module = build(plan.model, [number], plan.seed)[number]
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
        with torch.device("meta"):
            module = build(plan.model, [number], plan.seed)[number]
        parameters = sum(value.numel() for value in module.parameters())
        found.append((parameters, shape.elements * shape.dtype.itemsize))
    return found


def _shared(values: Sequence[float]) -> list[float]:
    """The mean over all processes."""
    own = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(own)
    shared: list[float] = (own / dist.get_world_size()).tolist()
    return shared

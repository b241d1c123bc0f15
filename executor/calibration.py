"""Measures on this machine what the simulator needs, with the machinery of a run.

Small runs of their own make known amounts of work: stages of one layer and of
several, transfers of more and more bytes, gathers and reductions of more and
more parameters. Their measured timelines tell seconds, and least squares turn
these into a cost for each layer, a latency and a bandwidth. All processes that
the calibrated run will have are there and busy at the same time, as they will
be then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from executor.backends.distributed import DistributedBackend
from executor.backends.local import LocalBackend
from executor.backends.protocol import Backend
from executor.job import Job
from executor.lanes import Threads
from executor.measured import END, READY, START
from executor.model import Model, build
from executor.plan import Plan
from executor.processes import Activity, Place, join
from executor.stage import Stage
from executor.training import Trainer
from schedules import Communication, Layout, Operation, Sharding, TaskGraph, build_graph
from schedules.columns import NONE, Seconds

Profile = dict[str, Any]
"""What is measured, as the profile's file holds it; seconds, bytes, bytes per second."""

ALIKE = 3
"""Layers of a kind that are run: to know what one more takes."""

COARSE = 3
"""Layers of a stage where stages have several."""

MICROBATCHES = 4

WARM_UP = 2
"""Steps of each small run that do not count."""


@dataclass(frozen=True)
class Effort:
    """How much is measured: steps of each small run, and the sizes that are tried."""

    steps: int = 12
    bytes: tuple[int, ...] = (4_096, 65_536, 262_144, 1_048_576, 4_194_304)
    parameters: tuple[int, ...] = (1_024, 16_384, 65_536, 262_144, 1_048_576)


QUICK = Effort(4, (4_096, 262_144, 1_048_576), (1_024, 65_536, 262_144))


@dataclass(frozen=True)
class Line:
    """Seconds as a straight line over an amount."""

    fixed: float
    slope: float


def calibrate(place: Place, work: tuple[Job, Effort]) -> Profile | None:
    """Measure in all processes of a job; the first one tells."""
    job, effort = work
    join(place)
    plan = job.plan()
    place.send({"what": "compute"})
    with place.watch.during(Activity("measuring compute")):
        compute = _measure_compute(plan, effort)
    place.send({"what": "transfers"})
    with place.watch.during(Activity("measuring transfers")):
        transfers = _measure_transfers(plan, effort)
    place.send({"what": "gathers and reductions"})
    with place.watch.during(Activity("measuring gathers and reductions")):
        data = _measure_data(plan, effort)
    return {**compute, **transfers, **data} if place.is_first else None


# The small runs


def _columns(plan: Plan, backend: Backend, steps: int) -> list[Seconds]:
    """When tasks ran in each step that counts, for process 0 alone if there are several."""
    trainer = Trainer(plan, backend)
    for _ in trainer.run(range(WARM_UP + steps)):
        pass
    found = trainer.columns_of_all()[WARM_UP:]
    trainer.close()
    return found


def _durations(columns: Sequence[Seconds], tasks: Sequence[int]) -> float:
    """The median time that these tasks took."""
    return float(np.median([(each[:, END] - each[:, START])[:, tasks] for each in columns]))


def _of(graph: TaskGraph, operation: Operation, stage: int | None = None) -> list[int]:
    chosen = graph.operation == operation
    if stage is not None:
        chosen &= graph.stage == stage
    tasks: list[int] = np.flatnonzero(chosen).tolist()
    return tasks


# Compute: each kind of layer, and what a pass takes besides


def _measure_compute(plan: Plan, effort: Effort) -> Profile:
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
                found.append(_durations(columns, _of(small.graph, operation, stage)))
    known = {
        operation: _shared(_least_squares(rows, found)) for operation, found in seconds.items()
    }
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
    for number, layer in enumerate(plan.model.layers):
        with torch.device("meta"):
            module = build(layer, number, plan.seed)
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
            module = build(plan.model.layers[number], number, plan.seed)
        parameters = sum(value.numel() for value in module.parameters())
        found.append((parameters, shape.elements * shape.dtype.itemsize))
    return found


def _least_squares(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """What each column costs, if a row costs the sum of its columns; nothing costs less than 0."""
    table, target = np.array(rows), np.array(seconds)
    weights = 1 / np.maximum(target, 1e-9)
    solution, *_ = np.linalg.lstsq(table * weights[:, None], target * weights)
    costs: list[float] = np.maximum(solution, 0.0).tolist()
    return costs


def _shared(values: Sequence[float]) -> list[float]:
    """The mean over all processes."""
    own = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(own)
    shared: list[float] = (own / dist.get_world_size()).tolist()
    return shared


# Communication: models that do nothing but hand on, or have parameters


class Scale(nn.Module):
    """A layer that hands on as many numbers as it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, value: Tensor) -> Tensor:
        """The same shape."""
        return value * self.factor


class Weigh(nn.Module):
    """A layer of many parameters and little work."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(parameters))

    def forward(self, value: Tensor) -> Tensor:
        """The same shape."""
        return value * self.weights[0]


def _idle_model(layers: int, make: Any, width: int) -> Model:
    def batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
        del step
        values = torch.zeros(len(samples), width)
        return values, values[:, :1]

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return functional.mse_loss(output[:, :1], targets)

    return Model([make] * layers, loss, batch)


def _measure_transfers(plan: Plan, effort: Effort) -> Profile:
    """Latency and bandwidth of each channel, and what passing from lane to lane takes."""
    ranks = plan.graph.layout.pipeline_parallel
    if ranks == 1:
        return {"channels": [], "dispatch": {"next": 0.0, "wake": 0.0}}
    layout = Layout(ranks, MICROBATCHES, 2)
    graph = build_graph("breadth-first", layout)
    samples: dict[tuple[int, int], list[tuple[float, float]]] = {}
    lags: dict[bool, list[float]] = {True: [], False: []}
    for size in effort.bytes:
        width = max(1, size // plan.dtype.itemsize)
        small = replace(
            plan, graph=graph, model=_idle_model(layout.stages, Scale, width), microbatch_size=1
        )
        columns = _columns(small, _distributed(small), effort.steps)
        for sender, receiver, tasks in _channels(graph) if columns else ():
            point = (float(width * plan.dtype.itemsize), _durations(columns, tasks))
            samples.setdefault((sender, receiver), []).append(point)
        for each in columns:
            for wakes, lag in _lags(graph, each[0]):
                lags[wakes].append(lag)
    lines = {pair: fit_line(points) for pair, points in samples.items()}
    channels = [
        {"sender": sender, "receiver": receiver, "latency": line.fixed, "bandwidth": 1 / line.slope}
        for (sender, receiver), line in lines.items()
    ]
    medians = {wakes: float(np.median(found)) if found else 0.0 for wakes, found in lags.items()}
    return {"channels": channels, "dispatch": {"next": medians[False], "wake": medians[True]}}


def _distributed(plan: Plan) -> Backend:
    return DistributedBackend(plan, Threads(), "gloo")


def _channels(graph: TaskGraph) -> Iterator[tuple[int, int, list[int]]]:
    tasks = np.flatnonzero(graph.is_transfer)
    pairs = sorted(set(zip(graph.rank[tasks].tolist(), graph.peer[tasks].tolist(), strict=True)))
    for sender, receiver in pairs:
        chosen = (graph.rank[tasks] == sender) & (graph.peer[tasks] == receiver)
        yield sender, receiver, tasks[chosen].tolist()


def _lags(graph: TaskGraph, columns: Seconds) -> Iterator[tuple[bool, float]]:
    """For compute tasks: whether another lane's task was the last they waited for; how long ago."""
    before_on_lane: dict[int, int] = {}
    for lane in range(len(graph.lanes)):
        pairs = pairwise(graph.lane_tasks.of(lane).tolist())
        before_on_lane.update({task: before for before, task in pairs})
    for task in np.flatnonzero(graph.is_compute).tolist():
        others = graph.dependencies.of(task).tolist()
        own = before_on_lane.get(task, NONE)
        if not others or own == NONE:
            continue
        last = max([own, *others], key=lambda each: columns[END, each])
        yield last != own, float(columns[READY, task] - columns[END, last])


def _measure_data(plan: Plan, effort: Effort) -> Profile:
    """Gathers, reductions, norms and updates, by how many parameters they are of."""
    ranks = plan.graph.layout.pipeline_parallel
    graph = build_graph(
        "breadth-first", Layout(ranks, 1, 2), Communication(Sharding.FULL, clipping=True)
    )
    kinds = (Operation.GATHER, Operation.REDUCE, Operation.NORM, Operation.OPTIMIZER)
    points: dict[Operation, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for size in effort.parameters:
        model = _idle_model(2 * ranks, lambda: Weigh(size), 1)  # noqa: B023
        small = replace(
            plan,
            graph=graph,
            model=model,
            microbatch_size=1,
            optimization=replace(plan.optimization, clip=1.0),
        )
        columns = _columns(small, _distributed(small), effort.steps)
        amount = float(Stage(small, 0, 0, torch.device("cpu")).flat.size)
        for kind in kinds if columns else ():
            of_rank = 1 if kind in (Operation.GATHER, Operation.REDUCE) else 2 / plan.data_parallel
            points[kind].append((amount * of_rank, _durations(columns, _of(graph, kind))))
    lines = {kind: fit_line(found) for kind, found in points.items() if found}
    return {
        "data": {
            kind.title: {"fixed": line.fixed, "per_parameter": line.slope}
            for kind, line in lines.items()
        }
    }


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """The straight line through seconds over amounts that has the least relative errors."""
    fixed, slope = _least_squares(
        [(1.0, amount) for amount, _ in points], [seconds for _, seconds in points]
    )
    return Line(fixed, max(slope, 1e-15))

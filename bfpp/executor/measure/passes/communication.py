"""Transfers, gathers and reductions, by models that do nothing but need them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bfpp.executor.measure.passes.fitting import fit_line
from bfpp.executor.measure.passes.runs import (
    MICROBATCHES,
    Bench,
    Profile,
    durations,
    tasks_of,
)
from bfpp.executor.model.model import Model
from bfpp.executor.plan.plan import Plan
from bfpp.executor.train.measured_timeline import END, READY
from bfpp.schedules import Communication, Layout, Operation, Sharding, TaskGraph, build_graph
from bfpp.schedules.columns import NONE, Seconds


class ScaleLayer(nn.Module):
    """A layer whose output is as large as its input."""

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


def idle_model(layers: Sequence[Callable[[], nn.Module]], width: int) -> Model:
    """A model of layers that need no more than something to compute with."""

    def batch(step: int, samples: range) -> tuple[Tensor, Tensor]:
        del step
        values = torch.zeros(len(samples), width)
        return values, values[:, :1]

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return functional.mse_loss(
            output[:, :1].float(), targets
        )  # on a GPU, of one precision only

    return Model([*layers], loss, batch)


def measure_transfers(plan: Plan, bench: Bench) -> Profile:
    """Latency and bandwidth of each channel, and the cost of a hand-over between lanes."""
    ranks = plan.graph.layout.pp
    if ranks == 1:
        return {"channels": [], "dispatch": {"next": 0.0, "wake": 0.0, "post": 0.0}}
    layout = Layout(ranks, MICROBATCHES, 2)
    graph = build_graph("breadth-first", layout)
    samples: dict[tuple[int, int], list[tuple[float, float]]] = {}
    delays: dict[bool, list[float]] = {True: [], False: []}
    for size in bench.bytes:
        width = max(1, size // plan.dtype.itemsize)
        small = replace(
            plan,
            graph=graph,
            model=idle_model([ScaleLayer] * layout.units, width),
            microbatch_size=1,
        )
        columns = bench.run(small)
        for sender, receiver, tasks in _channels(graph) if columns else ():
            point = (float(width * plan.dtype.itemsize), durations(columns, tasks))
            samples.setdefault((sender, receiver), []).append(point)
        for each in columns:
            for wakes, lag in lags(graph, each[0]):
                delays[wakes].append(lag)
    lines = {pair: fit_line(points) for pair, points in samples.items()}
    channels = [
        {"sender": sender, "receiver": receiver, "latency": line.fixed, "bandwidth": 1 / line.slope}
        for (sender, receiver), line in lines.items()
    ]
    medians = {
        wakes: float(np.median(measured)) if measured else 0.0 for wakes, measured in delays.items()
    }
    # Lanes post transfers beside passes.
    dispatch = {"next": medians[False], "wake": medians[True], "post": 0.0}
    return {"channels": channels, "dispatch": dispatch}


def _channels(graph: TaskGraph) -> Iterator[tuple[int, int, list[int]]]:
    tasks = np.flatnonzero(graph.is_transfer)
    pairs = sorted(set(zip(graph.rank[tasks].tolist(), graph.peer[tasks].tolist(), strict=True)))
    for sender, receiver in pairs:
        chosen = (graph.rank[tasks] == sender) & (graph.peer[tasks] == receiver)
        yield sender, receiver, tasks[chosen].tolist()


def lags(graph: TaskGraph, columns: Seconds) -> Iterator[tuple[bool, float]]:
    """For compute tasks: if another lane's task was the last they waited for, and how long ago."""
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


KINDS = (Operation.GATHER, Operation.REDUCE, Operation.NORM, Operation.OPTIMIZER)

WAYS = (
    Communication(Sharding.FULL, clipping=True),
    Communication(Sharding.NONE, clipping=True),
    Communication(Sharding.NONE),
)
"""With these, each of the kinds is done in all its ways."""


def measure_data(plan: Plan, bench: Bench) -> Profile:
    """Gathers, reductions, norms and updates, by how many parameters they are of.

    Once more with two copies of each stage, where ranks can hold these in pairs: then groups are
    of other processes, and larger.
    """
    ranks = plan.graph.layout.pp
    build = partial(build_graph, "breadth-first", Layout(ranks, 1, 2))
    profile = {"data": _lines(plan, bench, build)}
    if ranks % 2 == 0:
        down = (*range(ranks),)
        both = Layout(ranks, 2, copies=[down[::-1]])
        profile["copies"] = _lines(plan, bench, partial(build_graph, "chimera", both))
    return profile


def _lines(plan: Plan, bench: Bench, build: Callable[[Communication], TaskGraph]) -> Profile:
    """Seconds by parameters of each algorithm, in graphs with two stages on a rank."""
    points: dict[str, list[tuple[float, float]]] = {}
    for communication, size in product(WAYS, bench.parameters):
        small = _weighing(plan, build(communication), size)
        columns = bench.run(small)
        for kind in KINDS if columns else ():
            if tasks := tasks_of(small.graph, kind):
                point = _parameters(small, kind, size), durations(columns, tasks)
                points.setdefault(kind.algorithm(communication), []).append(point)
    lines = {way: fit_line(measured) for way, measured in points.items()}
    return {way: {"fixed": line.fixed, "per_parameter": line.slope} for way, line in lines.items()}


def _weighing(plan: Plan, graph: TaskGraph, size: int) -> Plan:
    """Two stages on a rank, each of `size` parameters, and little else to do."""
    return replace(
        plan,
        graph=graph,
        model=idle_model([partial(Weigh, size)] * graph.layout.units, 1),
        microbatch_size=1,
        optimization=replace(plan.optimization, clip=1.0 if graph.communication.clipping else None),
    )


def _parameters(plan: Plan, kind: Operation, size: int) -> float:
    """Parameters of an operation: a stage's, or a rank's share of all its stages'."""
    return size if kind in (Operation.GATHER, Operation.REDUCE) else 2 * size / plan.shares

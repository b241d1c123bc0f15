"""Muon on this machine: making each kind of layer's matrices orthogonal, and updating them.

Layers that have the parameters of the model's, and do nothing else with them, are between two
others, since the first and the last layer of a model have no matrices of Muon's. One and several
of them in a stage give what one more takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, product

import torch
from torch import Tensor, nn

from bfpp.executor.devices.flat_buffers import parameters_of
from bfpp.executor.measure.passes.communication import ScaleLayer, idle_model
from bfpp.executor.measure.passes.compute import kinds_of
from bfpp.executor.measure.passes.fitting import Line, fit_line
from bfpp.executor.measure.passes.runs import Bench, Profile, durations, tasks_of
from bfpp.executor.plan.parameter_names import rules_of
from bfpp.executor.plan.plan import Plan
from bfpp.executor.settings import EmbeddingStage
from bfpp.schedules import Communication, Layout, Operation, Sharding, build_graph

COUNTS = (1, 3)
"""Layers of a stage that are tried."""

STAGES = 2
"""Stages of a rank."""

WAYS = tuple(
    Communication(sharding, clipping=clips, muon=True)
    for sharding, clips in product((Sharding.NONE, Sharding.FULL), (False, True))
)

Lines = dict[str, Line]
"""Seconds by layers, of each algorithm."""


class Holder(nn.Module):
    """A layer that has parameters of these shapes."""

    def __init__(self, shapes: Sequence[torch.Size]) -> None:
        super().__init__()
        self.held = nn.ParameterList([nn.Parameter(torch.ones(shape)) for shape in shapes])

    def forward(self, value: Tensor) -> Tensor:
        """The same shape."""
        return value * torch.stack([each.flatten()[0] for each in self.held]).mean()


def measure_matrices(plan: Plan, bench: Bench) -> Profile:
    """Seconds of Muon for a layer of each kind; nothing where it is not the optimizer."""
    if not plan.optimization.is_muon:
        return {}
    kinds = kinds_of(plan)
    shapes = {kind: _shapes(plan, kinds.index(kind)) for kind in dict.fromkeys(kinds)}
    measured = {kind: _lines(plan, bench, each) for kind, each in shapes.items() if each}
    runs = [kind for kind, _ in groupby(kinds)]
    ways = {way for lines in measured.values() for way in lines} if bench.context.is_first else ()
    return {
        "muon": {
            way: {
                "fixed": max(lines[way].fixed for lines in measured.values()),
                "layers": [measured[kind][way].slope if kind in measured else 0.0 for kind in runs],
            }
            for way in sorted(ways)
        }
    }


def _shapes(plan: Plan, layer: int) -> list[torch.Size]:
    """The parameters of a layer that has matrices of Muon's: all others are vectors."""
    places = parameters_of({layer: plan.outline(layer)})
    rules = rules_of(plan, places)
    if not any(rule.is_matrix for rule in rules.values()):
        return []
    values = {name: getattr(*uses[0]) for name, uses in places.items()}
    return [
        value.shape if rules[name].is_matrix else torch.Size([value.numel()])
        for name, value in values.items()
    ]


def _lines(plan: Plan, bench: Bench, shapes: Sequence[torch.Size]) -> Lines:
    """Seconds of one more of such layers, and of all together once; for process 0 alone."""
    points: dict[str, list[tuple[float, float]]] = {}
    for communication, count in product(WAYS, COUNTS):
        small = _holding(plan, communication, shapes, count)
        columns = bench.run(small)
        for kind in _kinds(communication) if columns else ():
            seconds = durations(columns, tasks_of(small.graph, kind))
            points.setdefault(kind.algorithm(communication), []).append((STAGES * count, seconds))
    return {way: fit_line(each) for way, each in points.items()}


def _kinds(communication: Communication) -> Sequence[Operation]:
    """The operations to measure: updates are element-wise, and so take a share's part of them."""
    is_whole = communication.sharding is Sharding.NONE
    return (Operation.ORTHOGONALISE, Operation.OPTIMIZER)[: 1 + is_whole]


def _holding(
    plan: Plan, communication: Communication, shapes: Sequence[torch.Size], count: int
) -> Plan:
    """Two stages a rank, each of `count` layers with parameters of these shapes."""
    ranks = plan.graph.layout.pp
    graph = build_graph("breadth-first", Layout(ranks, 1, STAGES), communication)
    layers = [partial(Holder, shapes)] * (graph.layout.units * count)
    model = replace(idle_model([ScaleLayer, *layers, ScaleLayer], 1), attached=(1, 1))
    return replace(
        plan,
        graph=graph,
        model=model,
        ends=EmbeddingStage.ATTACHED,
        microbatch_size=1,
        optimization=replace(plan.optimization, clip=1.0 if communication.clipping else None),
    )

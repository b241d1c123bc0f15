"""Seconds of the passes of each layer, and of a stage in addition to its layers.

All ranks compute at the same time and transfer to one another, as in a run:
where cores are shared, a pass takes longer during transfers than alone.
Whole backward passes and those in halves are measured in turn. On a GPU, a pass takes its device
some time, and its host another to launch it; whichever is slower in a run holds the other up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

import numpy as np

from bfpp.executor.measure.passes.fitting import least_squares
from bfpp.executor.measure.passes.posting import device_seconds, host_seconds
from bfpp.executor.measure.passes.runs import (
    MICROBATCHES,
    Bench,
    Profile,
    durations,
    tasks_of,
)
from bfpp.executor.plan.plan import Plan
from bfpp.schedules import Layout, Operation, TaskGraph, build_graph
from bfpp.schedules.columns import Seconds
from bfpp.schedules.families.breadth_first import BreadthFirst
from bfpp.schedules.orders.steps import Step, backward, backward_input, backward_weight

PASSES = {
    "forward": Operation.FORWARD,
    "backward": Operation.BACKWARD,
    "backward_input": Operation.BACKWARD_INPUT,
    "backward_weight": Operation.BACKWARD_WEIGHT,
}

ALIKE = 3
"""Layers of a kind that are run, to measure the cost of one more."""

COARSE = 3
"""Layers of a stage where stages have several."""


FEW = 2
"""Micro-batches of a step whose launches are few: of one, backward passes are whole."""

SecondsOf = Callable[[TaskGraph, Sequence[Seconds], Sequence[int]], float]
"""Seconds of one of some tasks of a graph, by the columns of steps."""

ByLayer = dict[str, list[float]]
"""Seconds of each kind of pass: of a stage, and of a layer of each kind."""


class AllPasses(BreadthFirst):
    """Every second backward pass in halves; the weight halves of a stage come last."""

    def steps(self, layout: Layout, rank: int) -> Iterator[Step]:
        """Breadth-first's, with halves in the place of some."""
        for step in super().steps(layout, rank):
            _, stage, microbatch, _ = step
            is_backward = step == backward(stage, microbatch)
            yield backward_input(stage, microbatch) if is_backward and microbatch % 2 else step
            if is_backward and microbatch == layout.microbatches - 1:
                for each in range(1, layout.microbatches, 2):
                    yield backward_weight(stage, each)


def measure_compute(plan: Plan, bench: Bench) -> Profile:
    """Seconds of the passes of each layer, and of a stage in addition to its layers.

    On a GPU also those in which its host launches passes, and any other task.
    """
    if bench.job.uses_gpu:
        return _measure_gpu(plan, bench)
    [known] = _by_layer(plan, bench, MICROBATCHES, bench.run_passes, [_durations])
    return _profile(plan, known)


def _durations(graph: TaskGraph, columns: Sequence[Seconds], tasks: Sequence[int]) -> float:
    del graph
    return durations(columns, tasks)


def _profile(plan: Plan, known: ByLayer) -> Profile:
    """The parts of a profile; none in processes that do not know the times of all."""
    if not known:
        return {}
    runs, sizes = _runs(kinds_of(plan)), _sizes(plan)
    measured = [
        {
            "count": count,
            **{name: costs[1 + kind] for name, costs in known.items()},
            "parameters": sizes[first][0],
            "bytes": sizes[first][1],
        }
        for (kind, count), first in zip(runs, _firsts(runs), strict=True)
    ]
    return {"layers": measured, "passes": {name: costs[0] for name, costs in known.items()}}


def _measure_gpu(plan: Plan, bench: Bench) -> Profile:
    """Device time and host time, from the same steps.

    A host that launches steps one after another may wait for a full queue; one that begins each of
    few micro-batches when the device is done has slept before. What takes less time counts.
    """
    on_device = partial(device_seconds, is_shared=bench.is_shared)
    of_host = partial(host_seconds, is_shared=bench.is_shared)
    others: list[float] = []

    def launching(graph: TaskGraph, columns: Sequence[Seconds], tasks: Sequence[int]) -> float:
        others.append(of_host(graph, columns, np.flatnonzero(~graph.is_compute).tolist()))
        return of_host(graph, columns, tasks)

    one_by_one = partial(bench.run_passes, one_by_one=True)
    known, many = _by_layer(plan, bench, MICROBATCHES, bench.run_passes, [on_device, launching])
    [few] = _by_layer(plan, bench, FEW, one_by_one, [launching])
    if not known:
        return {}
    kinds, passes = kinds_of(plan), {}
    for name in PASSES:
        ways = many[name], few[name]
        whole = [way[0] + sum(way[1 + kind] for kind in kinds) for way in ways]
        fixed, *layers = ways[int(np.argmin(whole))]
        passes[name] = {"fixed": fixed, "layers": [layers[kind] for kind, _ in _runs(kinds)]}
    common = {"shared": int(bench.is_shared), "others": float(np.median(others))}
    return _profile(plan, known) | {"launching": common | passes}


def _by_layer(
    plan: Plan,
    bench: Bench,
    microbatches: int,
    run: Callable[[Plan], list[Seconds]],
    seconds: Sequence[SecondsOf],
) -> list[ByLayer]:
    """By each of `seconds`, those of the passes; only the first process knows the times of all."""
    ranks = plan.graph.layout.pp
    kinds, chosen = kinds_of(plan), chosen_layers(plan)
    rows: dict[str, list[list[float]]] = {name: [] for name in PASSES}
    taken: dict[str, list[list[float]]] = {name: [] for name in PASSES}
    finest = len(chosen) // ranks
    for stages in (finest, max(1, finest // COARSE)):
        layout = Layout(ranks, microbatches, stages)
        small = with_layers(plan, chosen, build_graph(AllPasses(), layout, bench.communication))
        columns = run(small)
        for stage, layers in enumerate(small.cuts if columns else ()):
            here = [kinds[chosen[layer]] for layer in layers]
            row = [1.0, *(float(here.count(kind)) for kind in range(max(kinds) + 1))]
            for name in _passes_of(stage, layout, bench):
                tasks = tasks_of(small.graph, PASSES[name], stage)
                rows[name].append(row)
                taken[name].append([each(small.graph, columns, tasks) for each in seconds])
    if not rows["forward"]:
        return [{} for _ in seconds]
    return [
        {name: least_squares(rows[name], [each[way] for each in taken[name]]) for name in PASSES}
        for way in range(len(seconds))
    ]


def _passes_of(stage: int, layout: Layout, bench: Bench) -> Sequence[str]:
    """The passes of a stage that are measured.

    PyTorch's runtime runs the first stage's backward passes whole, in the weight half.
    """
    is_whole = bench.interprets and stage == 0 and layout.stages > 1
    return [*PASSES][:2] if is_whole else [*PASSES]


def chosen_layers(plan: Plan) -> list[int]:
    """Some of the model's layers, that have each of its kinds as often as is measured."""
    runs = _runs(kinds_of(plan))
    return [
        layer
        for (_, count), first in zip(runs, _firsts(runs), strict=True)
        for layer in range(first, first + min(count, ALIKE * plan.graph.layout.pp))
    ]


def with_layers(plan: Plan, chosen: Sequence[int], graph: TaskGraph) -> Plan:
    """A plan of some of the model's layers, by another graph."""
    layers = [plan.model.layers[each] for each in chosen]
    model = replace(plan.model, layers=layers, attached=(0, 0), weights=None)
    return replace(plan, graph=graph, model=model)


def mocked_compute(seconds: Mapping[str, float], plan: Plan, bench: Bench) -> Profile:
    """The passes of layers that are to take these `seconds`, those attached at the ends none."""
    del bench
    before, after = plan.model.attached
    sizes = _sizes(plan)
    each = [
        {
            **(seconds if before <= number < len(sizes) - after else dict.fromkeys(seconds, 0.0)),
            "parameters": parameters,
            "bytes": size,
        }
        for number, (parameters, size) in enumerate(sizes)
    ]
    layers = [{"count": len(list(group)), **alike} for alike, group in groupby(each)]
    return {"layers": layers, "passes": dict.fromkeys(PASSES, 0.0)}


def kinds_of(plan: Plan) -> list[int]:
    """The number of each layer's kind: layers of a kind have the same parts and shapes.

    The first one is of its own, since its input has no gradient.
    """
    numbers: dict[str, int] = {}
    kinds = []
    for number in range(len(plan.model.layers)):
        module = plan.outline(number)
        shapes = [(name, tuple(value.shape)) for name, value in module.named_parameters()]
        kinds.append(numbers.setdefault(f"{number == 0} {module} {shapes}", len(numbers)))
    return kinds


def _runs(kinds: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of layers of a kind: the kind, and how many."""
    return [(number, len(list(group))) for number, group in groupby(kinds)]


def _firsts(runs: Sequence[tuple[int, int]]) -> list[int]:
    """The first layer of each run of layers of a kind."""
    counts = [count for _, count in runs]
    return [sum(counts[:at]) for at in range(len(counts))]


def _sizes(plan: Plan) -> list[tuple[int, int]]:
    """The number of parameters of each layer, and the bytes of its output for a micro-batch."""
    single = replace(
        plan,
        model=replace(plan.model, attached=(0, 0)),
        graph=build_graph("breadth-first", Layout(1, 1, len(plan.model.layers))),
    )
    sizes = []
    for number, form in enumerate(single.forms):
        module = plan.outline(number)
        parameters = sum(value.numel() for value in module.parameters())
        sizes.append((parameters, form.values.shape.bytes))
    return sizes

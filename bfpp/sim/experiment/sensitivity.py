"""Sensitivity of the step time to each cost: exact derivatives, in seconds per per cent.

Without contention the step time is the length of the critical path, and its
derivative is what the path's tasks lose. Where flows share ports, derivatives
are carried through the replay itself. At a tie of two paths the derivative is
that of one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.sim.costs.parameters import STAGE, numbers, relative_slope, tasks_of_kind
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.prices import parameters
from bfpp.sim.engines.compiled_engine import Slopes, flows_meet, replay_with_slopes, times
from bfpp.sim.engines.cost_model import CostModel, Costs
from bfpp.sim.unevenness.uneven_steps import UnevenSteps
from bfpp.traces.explain.causes import Causes
from bfpp.traces.timeline.timeline import Timeline

AT_ONCE = 16
"""Parameters whose derivatives one replay carries: bounds its memory."""

ALIKE = 0.005
"""Effects of parameters that differ by at most this share are shown as one."""


@dataclass(frozen=True)
class Sensitivity:
    """Change of the step time, in seconds, for each per cent that a parameter grows."""

    parameter: str
    seconds_per_percent: float


def sensitivities(graph: TaskGraph, model: CostModel) -> list[Sensitivity]:
    """The sensitivity to every operation, every stage, and the cluster's every number."""
    costs = model.costs(graph)
    names = []

    def each_slope() -> Iterator[Costs]:
        for name, slope in _slopes(graph, model, costs):
            names.append(name)
            yield slope

    step_slopes = step_time_slopes(graph, costs, each_slope())
    return [
        Sensitivity(name, float(slope) / 100)
        for name, slope in zip(names, step_slopes, strict=True)
    ]


def uneven_sensitivities(
    uneven: UnevenSteps, graph: TaskGraph, model: CostModel
) -> list[Sensitivity]:
    """The same of replicas that differ: along the critical path of the median step.

    The path goes through all replicas; of each task on it, what changes does so in proportion to
    how much longer it takes there than in an even step.
    """
    base, joint = model.costs(graph), uneven.typical
    replica, task = np.array([*map(joint.graph.place, joint.critical_path)], dtype=np.int32).T
    found = []
    for name, slope in _slopes(graph, model, base):
        total = 0.0
        for place in np.unique(replica).tolist():
            costs, path = uneven.costs.replicas[place], task[replica == place]
            total += _along(costs, _in_proportion(slope, base, costs), path)
        found.append(Sensitivity(name, total / 100))
    return found


def _in_proportion(slope: Costs, base: Costs, costs: Costs) -> Costs:
    """The derivative of other costs, which change as much in proportion."""

    def scaled(column: Seconds, own: Seconds, other: Seconds) -> Seconds:
        times: Seconds = np.divide(other, own, out=np.ones_like(own), where=own > 0)
        return column * times

    return replace(
        slope,
        seconds=scaled(slope.seconds, base.seconds, costs.seconds),
        bytes=scaled(slope.bytes, base.bytes, costs.bytes),
    )


def joined(strongest_first: Iterable[Sensitivity]) -> list[Sensitivity]:
    """The same with one for all parameters of a part of the cluster, or stages, of one effect.

    >>> nvlink = {"bandwidth": -2.0, "oversubscription": 2.0, "ring_efficiency": -2.0}
    >>> given = [Sensitivity(f"nvlink.{name}", each) for name, each in nvlink.items()]
    >>> given += [Sensitivity(f"stage.{stage}", 1.0) for stage in (7, 4, 3, 2)]
    >>> for each in joined(given):
    ...     print(each.parameter, each.seconds_per_percent)
    nvlink.bandwidth, ring_efficiency, 1/oversubscription -2.0
    stage.2 to 4, 7 1.0
    """
    groups: list[list[Sensitivity]] = []
    for each in strongest_first:
        alike = next((group for group in groups if _are_alike(group[0], each)), None)
        if alike:
            alike.append(each)
        else:
            groups.append([each])
    return [_as_one(group) for group in groups]


def _are_alike(one: Sensitivity, other: Sensitivity) -> bool:
    part, other_part = (each.parameter.rpartition(".")[0] for each in (one, other))
    if not part or part != other_part:
        return False
    effect, other_effect = one.seconds_per_percent, other.seconds_per_percent
    if not one.parameter.startswith(STAGE):
        effect, other_effect = abs(effect), abs(other_effect)
    return abs(effect - other_effect) <= ALIKE * abs(effect)


def _as_one(group: list[Sensitivity]) -> Sensitivity:
    """One for the group, named by all: those that shorten the step first, others as divisors."""
    group = sorted(group, key=lambda each: each.seconds_per_percent > 0)
    first = group[0]
    part, _, _ = first.parameter.rpartition(".")
    names = [each.parameter.removeprefix(f"{part}.") for each in group]
    if first.parameter.startswith(STAGE):
        names = _ranges(sorted(map(int, names)))
    elif part:
        shortens = first.seconds_per_percent < 0
        names = [
            name if (each.seconds_per_percent < 0) is shortens else f"1/{name}"
            for name, each in zip(names, group, strict=True)
        ]
    return Sensitivity(
        f"{part}.{', '.join(names)}" if part else names[0], first.seconds_per_percent
    )


def _ranges(numbers: list[int]) -> list[str]:
    """Numbers in order, of which three or more in a row are a range."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [
        text
        for run in runs
        for text in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))
    ]


def step_time_slopes(graph: TaskGraph, costs: Costs, slopes: Iterable[Costs]) -> Seconds:
    """The derivative of the step time, for each of some derivatives of the costs.

    These are taken a few at a time, since each is as long as the graph.
    """
    start, end = times(graph, costs)
    if flows_meet(costs, start, end):
        last, following = int(np.argmax(end)), iter(slopes)
        parts = iter(lambda: list(islice(following, AT_ONCE)), [])
        return np.concatenate(
            [replay_with_slopes(graph, costs, _stacked(part))[2][last] for part in parts]
        )
    path = np.array(Causes(Timeline(graph, start, end, "compiled")).critical_path, dtype=np.int32)
    return np.array([_along(costs, slope, path) for slope in slopes])


def _slopes(graph: TaskGraph, model: CostModel, costs: Costs) -> Iterator[tuple[str, Costs]]:
    """Each parameter, and the derivative of the costs by its logarithm."""
    present = set(graph.operation.tolist())
    kinds = [name for name, codes in parameters().items() if present.intersection(codes)]
    kinds += [f"{STAGE}{stage}" for stage in range(graph.layout.stages)]
    for kind in kinds:
        chosen = tasks_of_kind(graph, kind)
        yield (
            kind,
            Costs(
                np.where(chosen, costs.seconds, 0.0),
                np.where(chosen, costs.bytes, 0.0),
                costs.ports,
                np.zeros(len(costs.bandwidth)),
            ),
        )
    if isinstance(model, PhysicalCosts):
        for path, value in numbers(model.cluster):
            if isinstance(value, float):
                yield ".".join(path), relative_slope(model, graph, ("cluster", *path))


def _stacked(slopes: list[Costs]) -> Slopes:
    """Derivatives side by side, one a column."""
    return Slopes(
        np.stack([slope.seconds for slope in slopes], axis=1),
        np.stack([slope.bytes for slope in slopes], axis=1),
        np.stack([slope.bandwidth for slope in slopes], axis=1),
    )


def _along(costs: Costs, slope: Costs, path: Integers) -> float:
    """The derivative of the length of a path whose tasks have their ports to themselves."""
    total = slope.seconds[path].sum()
    path = path[costs.bytes[path] > 0]
    if not len(path):
        return float(total)
    ports = costs.ports[path]
    narrow = np.where(ports == NONE, np.inf, costs.bandwidth[ports]).argmin(axis=1)
    narrow = ports[np.arange(len(path)), narrow]
    bandwidth = costs.bandwidth[narrow]
    total += (slope.bytes[path] / bandwidth).sum()
    total -= (costs.bytes[path] * slope.bandwidth[narrow] / bandwidth**2).sum()
    return float(total)

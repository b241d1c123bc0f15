"""Prediction interval of a step time, and the effects that a prediction leaves out.

Theory of operation. Each end of a prediction's 80 % interval is as far from it, in logarithms, as
all constants together make it: each by what the step time changes where that one is at the end of
its own 80 % (`presets/deviations.toml`), and by what constants do not explain of published runs: of
machines, of sites and of runs of its kind (`bfpp.sim.experiment.residuals`). Independent parts add
up as squares. Constants that were fitted together are not independent: they change in the
combinations that are, the square root of their correlations.

Invariant: the same experiment has the same interval. Nothing is drawn.

Rejected:

- Slopes. The two ends differ: a host that is just fast enough has no slope; slower, it lengthens
  the step, and faster, it shortens nothing.
- Constants drawn at random. An end that differs little from draw to draw takes hundreds of
  predictions; this takes two for each constant that the step depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, hypot, log, sqrt
from typing import Any, NamedTuple

import numpy as np

from bfpp.schedules import Communication, Degrees, Layout
from bfpp.schedules.columns import Seconds
from bfpp.schedules.settings.precision import Format
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.placement import DevicePlacement
from bfpp.sim.cluster.provenance import origin_of
from bfpp.sim.cluster.software_profiles import Implementation
from bfpp.sim.costs.parameters import with_number
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines.caching import once
from bfpp.sim.experiment.deviations import (
    DoubtedConstant,
    Path,
    doubted_constants,
    grows,
)
from bfpp.sim.experiment.residuals import Residuals, residuals_of, rival_residual
from bfpp.sim.presets.numbers import QUANTILE
from bfpp.traces.timeline.timeline import Timeline
from bfpp.traces.timeline.units import GIGABYTE

FASTER, SLOWER = ENDS = -QUANTILE, QUANTILE
"""The ends of an 80 % interval, in standard deviations of each constant for the worse."""

WORSE = 256
"""Changed clusters and software profiles that are kept: of a few, all."""

NEARLY_FULL = 0.9
"""Share of a device's memory from which on allocators are known to stall."""


@dataclass(frozen=True)
class Interval:
    """80 % prediction interval of a measured step time, in seconds."""

    low: float
    high: float

    def __contains__(self, seconds: float) -> bool:
        return self.low <= seconds <= self.high


def interval(
    timeline: Timeline, physical: PhysicalCosts, residuals: Residuals | None = None
) -> Interval:
    """The interval of a predicted step time; with the shipped residuals by default."""
    return explained(timeline, physical, residuals).interval


class PredictedStep(NamedTuple):
    """A step with its predicted seconds, and those with other costs."""

    layout: Layout
    communication: Communication
    seconds: float
    seconds_by: Callable[[PhysicalCosts], float]

    @classmethod
    def of(cls, timeline: Timeline) -> PredictedStep:
        """The step of a timeline, all of which is simulated with other costs."""
        graph = timeline.graph
        layout, communication = graph.layout, graph.communication
        return cls(layout, communication, timeline.step_time, lambda costs: costs.step_time(graph))


class Explained(NamedTuple):
    """An interval, and the share of its variance that each constant and component makes."""

    interval: Interval
    shares: Mapping[str, float]


MACHINE, SITE, RUN = COMPONENTS = ("machine", "site", "run")
"""Shares of an interval that no constant makes."""


def explained(
    timeline: Timeline, physical: PhysicalCosts, residuals: Residuals | None = None
) -> Explained:
    """The interval of a predicted step time, and the sources of its width.

    Constants go by their names in the costs (`cluster.device.host_seconds`); shares are those of
    the mean of both ends, and constants that were fitted together share by what each does alone.
    """
    step = PredictedStep.of(timeline)
    faster, slower = (_changes(step, physical, end) for end in ENDS)
    components = residuals_of(physical, timeline.graph.layout, residuals)
    spread = Spread(*(float(np.linalg.norm(each.combined)) for each in (faster, slower)))
    of_constants = [hypot(*each) / sqrt(2) for each in zip(faster.alone, slower.alone, strict=True)]
    parts = dict(zip(map(".".join, faster.paths), of_constants, strict=True))
    parts |= {name: QUANTILE * each for name, each in zip(COMPONENTS, components, strict=True)}
    total = sum(each**2 for each in parts.values()) or 1.0
    shares = {name: each**2 / total for name, each in parts.items()}
    return Explained(around(timeline.step_time, spread, components.total), shares)


class Doubt(NamedTuple):
    """Uncertainty of a predicted step, beside others on the same cluster: of constants, its own.

    What constants change at an end of their 80 %, and a deviation of the run that none explains.
    """

    changes: Mapping[float, Seconds]
    residual: float


LEAST_SHARE = 0.01
"""Share of an interval's variance below which a part is not listed."""


def parts_of(expected: Explained, physical: PhysicalCosts) -> list[dict[str, Any]]:
    """The parts of an interval, the largest first: constants with the kind of their origin."""
    largest = sorted(expected.shares.items(), key=lambda part: -part[1])
    return [
        {"name": name.removeprefix("cluster."), "origin": _kind(physical, name), "share": share}
        for name, share in largest
        if share >= LEAST_SHARE
    ]


def _kind(physical: PhysicalCosts, name: str) -> str | None:
    """The kind of a constant's origin; None where it is not given, or of other values."""
    part, *path = name.split(".")
    origin = origin_of(physical.cluster.origins, tuple(path)) if part == "cluster" else None
    return None if origin is None else str(origin.kind)


def doubt_of(step: PredictedStep, physical: PhysicalCosts, ends: Iterable[float] = ENDS) -> Doubt:
    """Uncertainty of a step, at some ends of its interval: dozens of predictions for each."""
    changes = {end: _changes(step, physical, end).combined for end in ends}
    return Doubt(changes, rival_residual(physical, step.layout))


def interval_by(
    doubt: Doubt, step_time: float, physical: PhysicalCosts, layout: Layout
) -> Interval:
    """The interval of a predicted step time by a doubt that has both its ends."""
    spread = Spread(*(float(np.linalg.norm(doubt.changes[end])) for end in ENDS))
    return around(step_time, spread, residuals_of(physical, layout).total)


def difference_spread(one: Doubt, other: Doubt, end: float) -> float:
    """Distance to an end of the 80 % interval of log(`one` / `other`), of two steps on one cluster.

    What a constant changes in both alike says nothing about which is longer, nor does what is the
    machine's or the site's. What is a run's own is taken to be independent.
    """
    of_constants = float(np.linalg.norm(one.changes[end] - other.changes[end]))
    return hypot(of_constants, QUANTILE * hypot(one.residual, other.residual))


class Spread(NamedTuple):
    """Distances of the ends of an 80 % interval from the prediction, in logarithms."""

    faster: float
    slower: float

    def of(self, distance: float) -> float:
        """The end on the side of a logarithm of measured over predicted seconds."""
        return self.slower if distance > 0 else self.faster

    def wider(self, residual: float) -> Spread:
        """The same with a standard deviation that no constant explains."""
        faster, slower = (hypot(each, QUANTILE * residual) for each in self)
        return Spread(faster, slower)


def around(step_time: float, of_constants: Spread, residual: float) -> Interval:
    """The interval by the constants' deviations, and by one that they do not explain."""
    faster, slower = of_constants.wider(residual)
    return Interval(step_time * exp(-faster), step_time * exp(slower))


def constants_spread(timeline: Timeline, physical: PhysicalCosts, *, fitted: bool = True) -> Spread:
    """The constants' part of an 80 % interval.

    Not `fitted`: as if none had been fitted on this cluster.
    """
    faster, slower = (
        float(np.linalg.norm(constants_changes(timeline, physical, deviations, fitted=fitted)))
        for deviations in ENDS
    )
    return Spread(faster, slower)


def constants_changes(
    timeline: Timeline, physical: PhysicalCosts, deviations: float, *, fitted: bool = True
) -> Seconds:
    """Change of the step time's logarithm by each constant, worse by `deviations`.

    As much as is known of them where they were measured on the cluster, or else as usual.
    One after the other where they are independent; those that were fitted together, in combinations
    that are. Changes of two runs on a cluster, with the same software, are of the same constants.
    """
    return _changes(PredictedStep.of(timeline), physical, deviations, fitted=fitted).combined


class _Changes(NamedTuple):
    """Changes of a step time's logarithm: by each constant alone, and in combinations."""

    paths: Sequence[Path]
    alone: Seconds
    combined: Seconds


def _changes(
    step: PredictedStep, physical: PhysicalCosts, deviations: float, *, fitted: bool = True
) -> _Changes:
    doubted = doubted_constants(physical.cluster, physical.implementation, fitted=fitted)
    changes = [
        log(step.seconds_by(_worse(physical, each, deviations)))
        if _matters(each.path, step, physical)
        else log(step.seconds)
        for each in doubted.constants
    ]
    alone: Seconds = np.array(changes) - log(step.seconds)
    return _Changes([each.path for each in doubted.constants], alone, alone @ doubted.combinations)


def _matters(path: Path, step: PredictedStep, physical: PhysicalCosts) -> bool:
    """True if a step may depend on a constant: of others, no prediction is needed."""
    quantisation, layout = physical.execution.quantisation, step.layout
    degrees = replace(physical.degrees, pp=layout.pp)
    if path[1] in _not_crossed(physical, degrees) and path[-1] != "rendezvous":
        return False
    communication = step.communication
    alone = degrees.devices == degrees.pp and not (layout.copies or communication.tied_embeddings)
    needed: dict[str, object] = {
        "host_bandwidth": communication.offload,
        "dispatch_seconds": physical.dispatch_seconds,
        "collective_slowdown": communication.dp_overlap,
        "dropping_seconds": physical.model.experts,
        "exchange_efficiency": degrees.ep > 1,
        "former_efficiency": physical.implementation.attention_speed,
        "ring_efficiency": not alone,
        "synchronisation": max(degrees.tp, degrees.cp, degrees.ep) > 1,
        **{each: quantisation is not None and quantisation.format is each for each in Format},
    }
    return bool(needed.get(path[-1], True))


def _not_crossed(physical: PhysicalCosts, degrees: Degrees) -> set[str]:
    """The names of the levels of the network that join more devices than the job has."""
    joined = DevicePlacement.on(physical.cluster, degrees).sizes
    outer = zip(physical.cluster.levels[1:], joined, strict=True)
    return {level.name for level, inner in outer if inner >= degrees.devices}


@once
def _worse(physical: PhysicalCosts, constant: DoubtedConstant, deviations: float) -> PhysicalCosts:
    """The costs with one constant worse by some deviations: a longer time, a smaller share."""
    part = constant.path[0]
    worse = _worse_part(getattr(physical, part), constant, deviations)
    return replace(physical, **{part: worse})


@lru_cache(WORSE)
def _worse_part(
    part: Cluster | Implementation, constant: DoubtedConstant, deviations: float
) -> Any:
    """A part of costs with one constant worse: the same one for all costs that have the part."""
    spread = deviations * constant.deviation
    factor = exp(spread if grows(constant.path) else -spread)
    return with_number(part, constant.path[1:], constant.value * factor)


def not_modelled(timeline: Timeline, physical: PhysicalCosts, reserved_gb: float) -> list[str]:
    """Effects that may lengthen this step and are not in its prediction."""
    layout, communication = timeline.graph.layout, timeline.graph.communication
    degrees, device = replace(physical.degrees, pp=layout.pp), physical.cluster.device
    overlaps = layout.pp > 1 and (
        (degrees.dp > 1 and communication.dp_overlap)
        or (communication.pp_overlap and not physical.implementation.blocking_transfers)
    )
    left_out = physical.model.tied_embeddings and not communication.tied_embeddings
    routing = physical.routing
    evenly = bool(physical.model.experts and routing.capacity is None and routing.imbalance == 1)
    cases = {
        "loading data, checkpoints, logging": True,
        "stragglers: all devices are equally fast": (
            degrees.devices > 1 and not device.speed_deviation
        ),
        "stragglers beyond the usual spread of devices": (
            degrees.devices > 1 and device.speed_deviation > 0
        ),
        "others' traffic on the network": degrees.devices > physical.cluster.domain,
        "multiprocessors that communication in a pipeline takes from compute": overlaps,
        "experts that are chosen more often than others": evenly,
        "the all-reduce of the tied embedding's gradients": left_out and layout.ends_are_apart,
        "lower clocks at the power limit": device.sustained_efficiency == 1,
        "an allocator that runs short of memory": (
            reserved_gb > NEARLY_FULL * device.memory / GIGABYTE
        ),
    }
    return [what for what, applies in cases.items() if applies]

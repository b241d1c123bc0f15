"""Prediction interval of a step time, and the effects that a prediction leaves out.

Each end of a prediction's 80 % interval is as far from it, in logarithms, as all constants together
make it: each by what the step time changes where that one is at the end of its own 80 %
(`presets/deviations.toml`), and by what constants do not explain of published runs of its kind
(`presets/residuals.toml`). Such steps, and not slopes, for the two ends apart: a host that is just
fast enough has no slope; slower, it lengthens the step, and faster, it shortens nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp, hypot, log, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.schedules import Degrees, Layout
from bfpp.schedules.columns import Seconds
from bfpp.schedules.settings.attention import Attention
from bfpp.schedules.settings.precision import Format
from bfpp.schedules.settings.recomputation import NO_RECOMPUTATION
from bfpp.sim.cluster.network import INTER_NODE, INTRA_NODE, NETWORK, NVLINK, PCIE
from bfpp.sim.cluster.placement import DevicePlacement
from bfpp.sim.costs.parameters import numbers, with_number
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.presets.files import PRESETS, fitted_uncertainty, leaves, read_toml
from bfpp.traces.timeline.timeline import Timeline
from bfpp.traces.timeline.units import GIGABYTE

Matrix = npt.NDArray[np.float64]

QUANTILE = 1.2816
"""Standard deviations on each side of a normal distribution's middle 80 %."""

FASTER, SLOWER = ENDS = -QUANTILE, QUANTILE
"""The ends of an 80 % interval, in standard deviations of each constant for the worse."""

USUAL = "usual"
"""What holds of a cluster that says nothing else."""

ANY = "any"
"""The kind of runs of which none of their own kind are published."""

NEARLY_FULL = 0.9
"""Share of a device's memory from which on allocators are known to stall."""


class RunKind(NamedTuple):
    """Kind of run by which residuals are grouped."""

    recomputed: bool
    one_node: bool
    current: bool

    def __str__(self) -> str:
        return ", ".join(
            (
                "recomputed" if self.recomputed else "not recomputed",
                "one node" if self.one_node else "many nodes",
                "current software" if self.current else "software of 2022",
            )
        )


def kind_of(physical: PhysicalCosts, layout: Layout) -> RunKind:
    """The kind of a run."""
    devices = replace(physical.degrees, pp=layout.pp).devices
    return RunKind(
        physical.recomputation != NO_RECOMPUTATION,
        devices <= physical.cluster.domain,
        physical.implementation.attention is Attention.FUSED,
    )


@dataclass(frozen=True)
class Interval:
    """80 % prediction interval of a measured step time, in seconds."""

    low: float
    high: float

    def __contains__(self, seconds: float) -> bool:
        return self.low <= seconds <= self.high


def interval(
    timeline: Timeline, physical: PhysicalCosts, residuals: Mapping[str, float] | None = None
) -> Interval:
    """The interval of a predicted step time; with the shipped residuals by default."""
    residual = _residual(physical, timeline.graph.layout, residuals)
    return around(timeline.step_time, constants_spread(timeline, physical), residual)


def _residual(
    physical: PhysicalCosts, layout: Layout, residuals: Mapping[str, float] | None = None
) -> float:
    """The deviation of runs of this kind that no constant explains."""
    known = shipped_residuals() if residuals is None else residuals
    return known.get(str(kind_of(physical, layout)), known[ANY])


class Doubt(NamedTuple):
    """Uncertainty of a predicted step: of constants, and the residual of its kind.

    What constants change at an end of their 80 %, and a deviation that none explains.
    """

    changes: Mapping[float, Seconds]
    residual: float


def unexplained(physical: PhysicalCosts, layout: Layout) -> Doubt:
    """The doubt about a step if all constants were exact, which takes no prediction of it."""
    return Doubt(dict.fromkeys(ENDS, np.zeros(0)), _residual(physical, layout))


def doubt_of(timeline: Timeline, physical: PhysicalCosts, ends: Iterable[float] = ENDS) -> Doubt:
    """Uncertainty of a step, at some ends of its interval: dozens of predictions for each."""
    changes = {end: constants_changes(timeline, physical, end) for end in ends}
    return Doubt(changes, _residual(physical, timeline.graph.layout))


def difference_spread(one: Doubt, other: Doubt, end: float) -> float:
    """Distance to an end of the 80 % interval of log(`one` / `other`), of two steps on one cluster.

    What a constant changes in both alike says nothing about which is longer. What no constant
    explains is taken to be independent, since nobody has measured how much of it is common.
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
    """The interval by what the constants make, and by a deviation that they do not explain."""
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
    tables, together = _deviations(), _fitted_together(physical) if fitted else {}
    known = tables[USUAL] | (tables.get(physical.cluster.name, {}) if fitted else {}) | together
    measured = {("cluster", *path): value for path, value in physical.cluster.deviations}
    constants = [
        (path, value, spread)
        for path, value in numbers(physical)
        if value and (spread := measured.get(path) or known.get(_usual_path(physical, path)))
    ]
    changes = [
        log(_worse(physical, path, value, deviations * spread).step_time(timeline.graph))
        if _matters(path, timeline, physical)
        else log(timeline.step_time)
        for path, value, spread in constants
    ]
    combined: Seconds = (np.array(changes) - log(timeline.step_time)) @ _combinations(
        physical, [path if path in together else () for path, _, _ in constants]
    )
    return combined


def _matters(path: Path, timeline: Timeline, physical: PhysicalCosts) -> bool:
    """True if a step may depend on a constant: of others, no prediction is needed."""
    quantisation, layout = physical.execution.quantisation, timeline.graph.layout
    degrees = replace(physical.degrees, pp=layout.pp)
    if path[1] in _not_crossed(physical, degrees) and path[-1] != "rendezvous":
        return False
    communication = timeline.graph.communication
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


Path = tuple[str, ...]
"""The names of the fields that lead to a number in the costs."""


def _places(physical: PhysicalCosts) -> dict[Path, int]:
    """Which of the constants that were fitted together is where in these costs."""
    named = {
        ("clusters", physical.cluster.name): "cluster",
        ("implementations", physical.implementation.name): "implementation",
    }
    return {
        (part, *inner): number
        for number, targets in enumerate(fitted_uncertainty()["constants"])
        for kind, name, *inner in (target.split(".") for target in targets)
        if (part := named.get((kind, name)))
    }


def _fitted_together(physical: PhysicalCosts) -> dict[Path, float]:
    """The standard errors of the constants that were fitted together, by where they are."""
    covariance = fitted_uncertainty()["covariance"]
    return {path: sqrt(covariance[at][at]) for path, at in _places(physical).items()}


def _combinations(physical: PhysicalCosts, paths: Sequence[Path]) -> Matrix:
    """Independent combinations of constants that get worse together, those fitted by their places.

    The square root of their correlations: of two in which a share is larger where a time is
    longer, one is better where the other is worse.
    """
    places, covariance = _places(physical), np.array(fitted_uncertainty()["covariance"])
    correlations = np.eye(len(paths))
    chosen = [number for number, path in enumerate(paths) if path]
    if chosen:
        at = [places[paths[number]] for number in chosen]
        sign = np.array([1 if _grows(paths[number]) else -1 for number in chosen])
        deviation = np.sqrt(covariance.diagonal())[at] * sign
        correlations[np.ix_(chosen, chosen)] = covariance[np.ix_(at, at)] / np.outer(
            deviation, deviation
        )
    values, vectors = np.linalg.eigh(correlations)
    root: Matrix = vectors * np.sqrt(np.maximum(values, 0.0))
    return root


def _usual_path(physical: PhysicalCosts, path: tuple[str, ...]) -> tuple[str, ...]:
    """Path of a number's deviation in the table: a level is NVLink, or a network."""
    links = {level.name: level.link for level in physical.cluster.levels}
    kinds = {NVLINK: INTRA_NODE, PCIE: INTRA_NODE, NETWORK: INTER_NODE}
    return tuple(kinds[links[name]] if name in links else name for name in path)


def _worse(physical: PhysicalCosts, path: Path, value: float, deviation: float) -> PhysicalCosts:
    """The costs with one constant worse by `deviation`: a time longer, a share smaller."""
    factor = exp(deviation if _grows(path) else -deviation)
    worse: PhysicalCosts = with_number(physical, path, value * factor)
    return worse


def _grows(path: Path) -> bool:
    """True if a larger constant is worse: a time, and not a share."""
    return not any(name.endswith(("efficiency", "efficiencies", "bandwidth")) for name in path)


@cache
def _deviations() -> dict[str, dict[tuple[str, ...], float]]:
    """Deviations by the path of the constant, the usual ones and those of clusters."""
    table = read_toml("constants", PRESETS / "deviations.toml")
    return {name: dict(leaves(part)) for name, part in table.items()}


@cache
def shipped_residuals() -> Mapping[str, float]:
    """The residuals by kind that come with the package."""
    return read_toml("constants", PRESETS / "residuals.toml")


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
        "stragglers: all devices are equally fast": degrees.devices > 1,
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

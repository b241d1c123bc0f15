"""Deviations of the constants of a cluster, each with its unit and its provenance.

Theory of operation. A constant's deviation is the standard deviation of its logarithm, since it
acts as a factor and cannot be negative. What is closest to the machine counts: measured on it
(`bfpp measure`), or else fitted to runs on it, or else what published values differ by
(`presets/deviations.toml`), times what its provenance says of the value: one that was copied from
another machine, or assumed, deviates more than one that was measured there.

Invariant: a number that the table does not know has no deviation, and is not varied. Those are data
sheets' (a peak, a memory's size): what a device makes of them is an efficiency, which is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.network import INTER_NODE, INTRA_NODE, NETWORK, NVLINK, PCIE
from bfpp.sim.cluster.provenance import Provenance, origin_of
from bfpp.sim.cluster.software_profiles import Implementation
from bfpp.sim.costs.parameters import numbers
from bfpp.sim.presets.files import PRESETS, fitted_uncertainty, leaves, read_toml

USUAL = "usual"
"""The deviations of a cluster that says nothing else."""

DOUBTED = "doubted"
"""By how much a constant deviates more, or less, than usual, by the kind of its origin."""

CLUSTER = "cluster"

UNITS = {
    "bytes": ("memory", "memory_limit"),
    "bytes/s": ("memory_bandwidth", "bandwidth", "host_bandwidth", "host_link"),
    "FLOP/s": ("peak", "peaks"),
    "1/s": ("exponentials",),
    "s": ("latency", "seconds", "synchronisation", "rendezvous"),
    "": ("multiprocessors", "tile", "size"),
}
"""Units by the names of constants, or how these end; all others are shares and factors."""

SHARE = "share"

KEPT = 64
"""Pairs of a cluster and a software profile whose constants are kept."""

Matrix = npt.NDArray[np.float64]

Path = tuple[str, ...]
"""The names of the fields that lead to a number in the costs."""


class Constant(NamedTuple):
    """A constant of a cluster: its value, unit and deviation, and how it is known, and by whom.

    Constants that are not doubted, as those of data sheets, have no `deviation`.
    """

    name: str
    value: float
    unit: str
    deviation: float | None
    kind: str
    source: str


def constants_of(cluster: Cluster) -> Iterator[Constant]:
    """The constants of a cluster whose file gives them a provenance, in the order of its fields."""
    parts = {"device": cluster.device, **{each.name: each for each in cluster.levels}}
    for name, part in parts.items():
        for path, value in numbers(part):
            origin = origin_of(cluster.origins, (name, *path))
            if value is not None and origin is not None:
                deviation = deviation_of(cluster, (CLUSTER, name, *path))
                unit, dotted = unit_of(path), ".".join((name, *path))
                yield Constant(dotted, value, unit, deviation, origin.kind, origin.source)


def unit_of(path: Path) -> str:
    """The unit of a constant, by its name or that of the table that it is in."""
    for unit, names in UNITS.items():
        if any(part.endswith(names) for part in (path[0], path[-1])):
            return unit
    return SHARE


def deviation_of(
    cluster: Cluster, path: Path, together: Mapping[Path, float] | None = None, *, own: bool = True
) -> float | None:
    """The deviation of a constant: measured on the cluster or fitted to it, or else as usual.

    What was measured on the machine itself deviates less than that (`DOUBTED`). Of those that were
    fitted `together`, it is known; not its `own`: as if nothing were known of the cluster alone.
    """
    tables = deviations()
    measured = dict(cluster.deviations).get(path[1:]) if path[0] == CLUSTER else None
    of_cluster = tables.get(cluster.name, {}) if own else {}
    usual = _usual_path(cluster, path)
    known = measured or (together or {}).get(path) or of_cluster.get(usual)
    if known or (deviation := tables[USUAL].get(usual)) is None:
        return known
    origin = origin_of(cluster.origins, path[1:]) if path[0] == CLUSTER else None
    return deviation * (1.0 if origin is None else tables[DOUBTED].get((origin.kind,), 1.0))


def _usual_path(cluster: Cluster, path: Path) -> Path:
    """Path of a number's deviation in the table: a level is NVLink, or a network."""
    links = {level.name: level.link for level in cluster.levels}
    kinds = {NVLINK: INTRA_NODE, PCIE: INTRA_NODE, NETWORK: INTER_NODE}
    return tuple(kinds[links[name]] if name in links else name for name in path)


@cache
def deviations() -> dict[str, dict[Path, float]]:
    """Deviations by the path of the constant, the usual ones and those of clusters."""
    table = read_toml("constants", PRESETS / "deviations.toml")
    return {name: dict(leaves(part)) for name, part in table.items()}


class DoubtedConstant(NamedTuple):
    """A number in a part of the costs, the part's name first in its path, and its deviation."""

    path: Path
    value: float
    deviation: float


class Doubts(NamedTuple):
    """Constants that deviate, and the combinations in which they do so independently."""

    constants: Sequence[DoubtedConstant]
    combinations: Matrix


def doubted_constants(
    cluster: Cluster, implementation: Implementation, *, fitted: bool = True
) -> Doubts:
    """The constants of these parts of costs; not `fitted`: as if none had been on this cluster."""
    return _doubts(cluster, cluster.origins, implementation, fitted)


@lru_cache(KEPT)
def _doubts(
    cluster: Cluster, origins: tuple[Provenance, ...], implementation: Implementation, fitted: bool
) -> Doubts:
    """By origins, too: they do not tell clusters apart, and say how sure their constants are."""
    del origins
    together = _fitted_together(cluster, implementation) if fitted else {}
    parts = {CLUSTER: cluster, "implementation": implementation}
    constants = [
        DoubtedConstant(path, value, spread)
        for name, part in parts.items()
        for inner, value in numbers(part)
        if value and (spread := deviation_of(cluster, path := (name, *inner), together, own=fitted))
    ]
    paths = [each.path if each.path in together else () for each in constants]
    return Doubts(constants, _combinations(cluster, implementation, paths))


def _places(cluster: Cluster, implementation: Implementation) -> dict[Path, int]:
    """Which of the constants that were fitted together is where in these parts of costs."""
    named = {
        ("clusters", cluster.name): "cluster",
        ("implementations", implementation.name): "implementation",
    }
    return {
        (part, *inner): number
        for number, targets in enumerate(fitted_uncertainty()["constants"])
        for kind, name, *inner in (target.split(".") for target in targets)
        if (part := named.get((kind, name)))
    }


def _fitted_together(cluster: Cluster, implementation: Implementation) -> dict[Path, float]:
    """The standard errors of the constants that were fitted together, by where they are."""
    covariance, places = fitted_uncertainty()["covariance"], _places(cluster, implementation)
    return {path: sqrt(covariance[at][at]) for path, at in places.items()}


def _combinations(
    cluster: Cluster, implementation: Implementation, paths: Sequence[Path]
) -> Matrix:
    """Independent combinations of constants that get worse together, those fitted by their places.

    The square root of their correlations: of two in which a share is larger where a time is
    longer, one is better where the other is worse.
    """
    places = _places(cluster, implementation)
    covariance = np.array(fitted_uncertainty()["covariance"])
    correlations = np.eye(len(paths))
    chosen = [number for number, path in enumerate(paths) if path]
    if chosen:
        at = [places[paths[number]] for number in chosen]
        sign = np.array([1 if grows(paths[number]) else -1 for number in chosen])
        deviation = np.sqrt(covariance.diagonal())[at] * sign
        correlations[np.ix_(chosen, chosen)] = covariance[np.ix_(at, at)] / np.outer(
            deviation, deviation
        )
    values, vectors = np.linalg.eigh(correlations)
    root: Matrix = vectors * np.sqrt(np.maximum(values, 0.0))
    return root


def grows(path: Path) -> bool:
    """True if a larger constant is worse: a time, and not a share."""
    return not any(name.endswith(("efficiency", "efficiencies", "bandwidth")) for name in path)

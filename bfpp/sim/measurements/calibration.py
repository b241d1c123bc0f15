"""Fits the constants of a cluster to measured times of its kernels, host and links.

A least-squares fit of log(predicted / measured seconds), in which all measurements have the same
weight. Standard errors are those of the constants' logarithms. Constants without a measurement keep
their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log
from statistics import median

import numpy as np

from bfpp.schedules import InvalidInput
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.costs.parameters import numbers, with_number
from bfpp.sim.measurements.least_squares import Numbers, least_squares
from bfpp.sim.measurements.measured_kernels import Row, prediction_of
from bfpp.sim.operators.operators import Way

DEVICE, FORMATS = "device", "format_efficiencies"

Path = tuple[str, ...]
"""The path to a constant of a cluster: of its device, or of a level by name."""


@dataclass(frozen=True)
class MeasuredConstant:
    """A fitted constant, and the standard error of its logarithm."""

    path: Path
    value: float
    deviation: float


def constants_of(cluster: Cluster, rows: Sequence[Row]) -> list[Path]:
    """The constants that some rows were measured for."""
    kinds = {row["kind"] for row in rows}
    heads = [row for row in rows if row["kind"] == "attention"]
    narrow = {row["precision"] for row in rows if row["kind"] == "product"} - {"bf16"}
    backward = {row["backward"] for row in heads}
    unevenness = {row.get("value_width", row["width"]) != row["width"] for row in heads}
    level = cluster.levels[0]
    sums = any(row.get("name") == Way.ALL_REDUCE for row in rows if row["kind"] == "collective")
    constants: list[tuple[Path, bool]] = [
        ((DEVICE, "matmul_efficiency"), "product" in kinds),
        *(((DEVICE, FORMATS, name), True) for name in sorted(narrow)),
        ((DEVICE, "memory_efficiency"), "streaming" in kinds),
        ((DEVICE, "launch_seconds"), "streaming" in kinds),
        ((DEVICE, "attention", "forward_efficiency"), False in backward),
        ((DEVICE, "attention", "backward_efficiency"), True in backward),
        ((DEVICE, "attention", "uneven_heads"), len(unevenness) > 1),
        ((DEVICE, "host_seconds"), "host" in kinds),
        ((DEVICE, "dispatch_seconds"), "dispatch" in kinds),
        ((DEVICE, "host_bandwidth"), "copy" in kinds),
        ((level.name, "bandwidth"), "collective" in kinds),
        ((level.name, "latency"), "collective" in kinds),
        ((level.name, "switch_bandwidth"), sums and level.switch_bandwidth is not None),
        ((level.name, "transfer_efficiency"), "transfer" in kinds),
        ((level.name, "transfer_latency"), "transfer" in kinds),
    ]
    return [path for path, is_measured in constants if is_measured]


def with_constants(cluster: Cluster, values: Mapping[Path, float]) -> Cluster:
    """The cluster with these constants replaced."""
    for path, value in values.items():
        if path[:-1] == (DEVICE, FORMATS):
            device = cluster.device
            shares = {**dict(device.format_efficiencies), path[-1]: value}
            device = replace(device, format_efficiencies=tuple(sorted(shares.items())))
            cluster = replace(cluster, device=device)
        else:
            cluster = with_number(cluster, path, value)
    return cluster


@dataclass(frozen=True)
class Calibration:
    """A fitted cluster, its constants, and the ratio of predicted to measured seconds of each row.

    The ratio is None for the sustained rate, which is not the time of one kernel.
    """

    cluster: Cluster
    constants: tuple[MeasuredConstant, ...]
    ratios: tuple[float | None, ...]


def calibrate(cluster: Cluster, rows: Sequence[Row]) -> Calibration:
    """Fit the constants; raises `InvalidInput` if the measurements are faster than the peaks."""
    timed = [row for row in rows if _is_fitted(row)]
    if not timed:
        raise InvalidInput("there are no measurements to fit a cluster to")
    paths = constants_of(cluster, timed)
    predictions = [prediction_of(row) for row in timed]
    measured = np.log([row["seconds"] for row in timed])

    def distances(logarithms: Numbers) -> Numbers:
        chosen = with_constants(cluster, dict(zip(paths, np.exp(logarithms), strict=True)))
        predicted: Numbers = np.log([seconds(chosen) for seconds in predictions])
        return predicted - measured

    start = np.log([_start(cluster, path) for path in paths])
    at, deviations = least_squares(distances, start)
    constants = [
        MeasuredConstant(*each)
        for each in zip(paths, np.exp(at).tolist(), deviations.tolist(), strict=True)
        if each[-1] < inf
    ]
    constants += [_sustained(cluster, row) for row in rows if row["kind"] == SUSTAINED]
    constants = [_share(each) for each in constants]
    calibrated = with_constants(cluster, {each.path: each.value for each in constants})
    calibrated = replace(calibrated, deviations=_deviations(constants))
    ratios = [
        None if row["kind"] == SUSTAINED else prediction_of(row)(calibrated) / row["seconds"]
        for row in rows
    ]
    return Calibration(calibrated, tuple(constants), tuple(ratios))


def _is_fitted(row: Row) -> bool:
    """True if a row is fitted: attention only by the library that PyTorch chooses by itself."""
    library: str = row.get("library", DEFAULT)
    return row["kind"] != SUSTAINED and library == DEFAULT


DEFAULT = "default"


def _deviations(constants: Sequence[MeasuredConstant]) -> tuple[tuple[Path, float], ...]:
    """Standard errors; a constant with a single measurement has none."""
    return tuple(sorted((each.path, each.deviation) for each in constants if each.deviation))


SUSTAINED = "sustained"

_START = {
    "launch_seconds": 3e-6,
    "host_seconds": 1e-5,
    "host_bandwidth": 2e10,
    "dispatch_seconds": 1e-3,
}
"""Start values of constants that the cluster does not give; latencies start as launches do."""


def _start(cluster: Cluster, path: Path) -> float:
    """The start value: the cluster's own, which stays if no measurement depends on it."""
    if path[:-1] == (DEVICE, FORMATS):
        return dict(cluster.device.format_efficiencies).get(path[-1], 1.0)
    return dict(numbers(cluster))[path] or _START.get(path[-1], _START["launch_seconds"])


def _sustained(cluster: Cluster, row: Row) -> MeasuredConstant:
    """The share of the peak that GEMMs reach in the later half, when the device is hot."""
    later = row["windows"][len(row["windows"]) // 2 :]
    rates = [row["flops"] / seconds / cluster.device.peak for seconds in later]
    path = (DEVICE, "sustained_efficiency")
    return MeasuredConstant(path, median(rates), float(np.std(np.log(rates))))


def _share(constant: MeasuredConstant) -> MeasuredConstant:
    """The constant, a share cut to 1; raises `InvalidInput` for one that is clearly above 1."""
    if not constant.path[-1].endswith(("efficiency", "uneven_heads")) or constant.value <= 1:
        return constant
    if log(constant.value) > SURE * constant.deviation + ROUNDING:
        raise InvalidInput(
            f"{'.'.join(constant.path)} would be {constant.value:.3g}: faster than the peak of the "
            "cluster of --like"
        )
    return replace(constant, value=1.0)


SURE = 3
"""A share may exceed 1 by this many standard errors, and counts as 1."""

ROUNDING = 1e-3
"""Logarithm by which a share may exceed 1 that has no standard error: of a single measurement."""

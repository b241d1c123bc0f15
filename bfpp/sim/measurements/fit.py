"""Constants fitted to measured throughput, and how well a table determines them.

The logarithms of predicted over measured throughput are made small by bounded
least squares with a robust loss; each prediction is a replay of its graph.
What a constant is not determined by shows in its standard error, from the
Jacobian at the optimum; what the rows do not determine keeps the value that it
had without them. The error to be expected elsewhere is estimated by
leaving out each group of rows (a table's method) in turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bfpp.schedules import InvalidInput
from bfpp.sim.cluster.cluster import load_cluster
from bfpp.sim.cluster.constants import Constants
from bfpp.sim.cluster.software_profiles import find_implementation
from bfpp.sim.costs.parameters import number_at
from bfpp.sim.measurements.validation import Case, Measurement, case_of
from bfpp.sim.presets.file_kinds import CONSTANTS
from bfpp.sim.presets.files import preset_names

LOSS_SCALE = 0.04
"""The relative error from which on a row counts as an outlier."""

TOLERANCE = 1e-4
"""Relative change of the loss at which the search ends."""

STEP = 1e-3
"""Difference by which derivatives are taken, as a share of a constant's range."""

FLAT = 1e-12
"""Share of the greatest curvature below which a direction is not determined at all."""

Numbers = npt.NDArray[np.float64]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Parameter:
    """A constant that is fitted, within bounds, wherever it stands in a file of constants.

    A target is the path of a setting: (`clusters`, name, section, key) or
    (`implementations`, name, key).
    """

    name: str
    unit: str
    low: float
    high: float
    targets: tuple[tuple[str, ...], ...]

    @property
    def prior(self) -> float:
        """Its value where it stands first, as shipped."""
        kind, name, *path = self.targets[0]
        shipped = load_cluster(name) if kind == "clusters" else find_implementation(name)
        return number_at(shipped, tuple(path))

    @property
    def held(self) -> Parameter:
        """The parameter that has no other value than its prior."""
        return replace(self, low=self.prior, high=self.prior)


@dataclass(frozen=True)
class FittedConstant:
    """A fitted parameter: its value, and one standard error.

    It is `determined` if the table says anything about it: less error than half its value.
    Else its value is the prior.
    """

    parameter: Parameter
    value: float
    standard_error: float
    determined: bool


@dataclass(frozen=True)
class Fit:
    """Constants, and the relative error that they leave in each row.

    `covariance` is that of the logarithms of those that are determined. `left_out` has the errors
    of rows by constants that were fitted without their group.
    """

    constants: tuple[FittedConstant, ...]
    covariance: Numbers
    errors: Numbers
    left_out: Numbers | None

    @property
    def settings(self) -> Constants:
        """The constants as settings."""
        return _constants(
            [each.parameter for each in self.constants],
            np.array([each.value for each in self.constants]),
        )


def parameters_of(rows: Sequence[Measurement]) -> list[Parameter]:
    """The constants that some rows can say something about.

    Clusters of one table differ in the network between nodes, not in the nodes.
    A transfer costs compute by a share of its time where it is overlapped, and
    by a wait for the other end where it blocks.
    A network whose file gives its transfers a latency goes through the host's
    TCP: its transfers and its rings reach the same share of the bandwidth.
    """
    clusters = sorted({row.record["cluster"] for row in rows})
    names = sorted({row.record["implementation"] for row in rows})
    parameters = [
        _everywhere(clusters, "device", "matmul_efficiency", "share", (0.3, 1.0)),
        _everywhere(clusters, "device", "sustained_efficiency", "share", (0.2, 0.8)),
        _everywhere(clusters, "intra_node", "synchronisation", "s", (0.0, 2e-3)),
    ]
    for name in clusters:
        through_host = load_cluster(name).levels[-1].transfer_latency > 0
        keys = ("ring_efficiency", "transfer_efficiency")[: 1 + through_host]
        if any(row.experiment.dp > 1 for row in rows if row.experiment.cluster == name):
            parameters.append(_network(name, "ring_efficiency", "share", (0.1, 1.0), keys))
        if through_host:
            latency = ("transfer_latency",)
            parameters.append(_network(name, *latency, "s", (1e-4, 2e-2), latency))
    blocking = [name for name in names if find_implementation(name).blocking_transfers]
    overlapping = [name for name in names if name not in blocking]
    if overlapping:
        parameters.append(_software(overlapping, "overlap_slowdown", "share", (0.0, 0.5)))
    if blocking:
        parameters.append(_everywhere(clusters, "inter_node", "rendezvous", "s", (0.0, 1e-2)))
    return parameters


def _everywhere(
    clusters: Sequence[str], section: str, key: str, unit: str, bounds: tuple[float, float]
) -> Parameter:
    targets = tuple(("clusters", name, section, key) for name in clusters)
    return Parameter(f"{section}.{key}", unit, *bounds, targets)


def _network(
    cluster: str, name: str, unit: str, bounds: tuple[float, float], keys: Sequence[str]
) -> Parameter:
    targets = tuple(("clusters", cluster, "inter_node", key) for key in keys)
    return Parameter(f"{cluster}: inter_node.{name}", unit, *bounds, targets)


def _software(names: Sequence[str], key: str, unit: str, bounds: tuple[float, float]) -> Parameter:
    targets = tuple(("implementations", name, key) for name in names)
    return Parameter(f"{', '.join(names)}: {key}", unit, *bounds, targets)


def fit(
    rows: Sequence[Measurement], cross_validate: bool = True, progress: Progress | None = None
) -> Fit:
    """Fit the constants of `parameters_of` to the throughput of some rows.

    `progress` is called with what is about to be fitted, `fits(rows)` times in
    all. Raises `InvalidInput` if there are fewer rows than constants.
    """
    _require_fit(rows)
    parameters = parameters_of(rows)
    if len(rows) <= len(parameters):
        raise InvalidInput(f"{len(rows)} rows cannot determine {len(parameters)} constants")
    cases = [case_of(row) for row in rows]
    report = progress or _ignore
    report("all rows")
    at, jacobian = _solve(parameters, cases, _start(parameters))
    errors = _errors(parameters, cases, at)
    ranges = np.array([each.high - each.low for each in parameters])
    covariance = _covariance(jacobian, np.log1p(errors)) * np.outer(ranges, ranges)
    deviations = np.sqrt(covariance.diagonal())
    determined = deviations < _values(parameters, at) / 2
    used = [
        each if is_free else each.held for each, is_free in zip(parameters, determined, strict=True)
    ]
    if not determined.all():
        at, _ = _solve(used, cases, at)
        errors = _errors(used, cases, at)
    left_out = _left_out(used, cases, at, report) if cross_validate else None
    values = _values(used, at)
    constants = zip(
        parameters, values.tolist(), deviations.tolist(), determined.tolist(), strict=True
    )
    of_logarithms = covariance[np.ix_(determined, determined)]
    of_logarithms /= np.outer(values[determined], values[determined])
    return Fit(tuple(FittedConstant(*each) for each in constants), of_logarithms, errors, left_out)


def too_few(rows: Sequence[Measurement]) -> bool:
    """True if rows cannot determine the constants; raises `InvalidInput` where none are fitted."""
    _require_fit(rows)
    return len(rows) <= len(parameters_of(rows))


def _require_fit(rows: Sequence[Measurement]) -> None:
    for row in rows:
        if row.experiment.profile is not None:
            raise InvalidInput("rows of a profile have no constants to fit")
        if row.experiment.constants is not None:
            raise InvalidInput(
                "rows have a column constants, which are what is fitted: leave it out"
            )
        if (cluster := row.experiment.cluster) not in preset_names("cluster"):
            raise InvalidInput(f"constants are those of presets, and {cluster!r} is a file")


def fitted(parameters: Sequence[Parameter], cases: Sequence[Case]) -> Constants:
    """Some parameters at their optimum for some cases."""
    at, _ = _solve(parameters, cases, _start(parameters))
    return _constants(parameters, _values(parameters, at))


def fits(rows: Sequence[Measurement]) -> int:
    """Number of fits of a cross-validation: one of all rows, and one without each group."""
    return 1 + len({row.group for row in rows})


def _ignore(what: str) -> None:
    del what


def _start(parameters: Sequence[Parameter]) -> Numbers:
    """Start of the search: a third of the way between the bounds.

    There the power limit is low enough to be felt, and so for the search to move it.
    """
    return np.full(len(parameters), 1 / 3)


def _values(parameters: Sequence[Parameter], at: Numbers) -> Numbers:
    low = np.array([each.low for each in parameters])
    high = np.array([each.high for each in parameters])
    values: Numbers = low + at * (high - low)
    return values


def _constants(parameters: Sequence[Parameter], values: Numbers) -> Constants:
    """The values as the settings that they stand for."""
    settings: dict[str, Any] = {"clusters": {}, "implementations": {}}
    for parameter, value in zip(parameters, values.tolist(), strict=True):
        for *path, key in parameter.targets:
            table = settings
            for name in path:
                table = table.setdefault(name, {})
            table[key] = value
    return Constants(settings["clusters"], settings["implementations"])


def _errors(parameters: Sequence[Parameter], cases: Sequence[Case], at: Numbers) -> Numbers:
    """The relative error of each case's throughput."""
    constants = _constants(parameters, _values(parameters, at))
    predicted = [case.throughput(constants) for case in cases]
    measured = [case.measured.tflops_per_gpu for case in cases]
    errors: Numbers = np.array(predicted) / np.array(measured) - 1
    return errors


def _solve(
    parameters: Sequence[Parameter], cases: Sequence[Case], start: Numbers
) -> tuple[Numbers, Numbers]:
    """The optimum, in shares of the parameters' ranges, and the Jacobian there."""
    from scipy.optimize import least_squares

    solution = least_squares(
        lambda at: np.log1p(_errors(parameters, cases, at)),
        np.clip(start, 0.01, 0.99),  # the search has to begin inside of the bounds
        bounds=(0, 1),
        loss="soft_l1",
        f_scale=LOSS_SCALE,
        diff_step=STEP,
        ftol=TOLERANCE,
        xtol=TOLERANCE,
    )
    return solution.x, solution.jac


def _left_out(
    parameters: Sequence[Parameter], cases: Sequence[Case], at: Numbers, report: Progress
) -> Numbers:
    """The error of each case by a fit without its group."""
    errors = np.empty(len(cases))
    for group in sorted({case.measured.group for case in cases}):
        report("without " + " ".join(group))
        inside = np.array([case.measured.group == group for case in cases])
        others = [case for case, out in zip(cases, inside, strict=True) if not out]
        without, _ = _solve(parameters, others, at)
        held = [case for case, out in zip(cases, inside, strict=True) if out]
        errors[inside] = _errors(parameters, held, without)
    return errors


def _covariance(jacobian: Numbers, residuals: Numbers) -> Numbers:
    """The covariance of the parameters, in shares of their ranges.

    Infinite is the variance of one that is not determined.
    """
    rows, parameters = jacobian.shape
    variance = float(residuals @ residuals) / (rows - parameters)
    values, vectors = np.linalg.eigh(jacobian.T @ jacobian)
    flat = values < values.max() * FLAT
    sharp = vectors[:, ~flat]
    covariance: Numbers = variance * (sharp / values[~flat]) @ sharp.T
    unknown = (vectors[:, flat] ** 2).sum(axis=1) > FLAT
    covariance[unknown, unknown] = np.inf
    return covariance


def constants_text(fitted: Fit, source: str) -> str:
    """The constants as TOML, with standard errors; `source` names the measurements."""
    lines = [
        f"# Fitted by `bfpp fit` to {source!a}. A comment has one standard error.",
        f'format = "{CONSTANTS.format}"',
    ]
    by_path: dict[tuple[str, ...], list[str]] = {}
    for constant in fitted.constants:
        error = f"{constant.standard_error:.2g} {constant.parameter.unit}"
        note = "" if constant.determined else ", not determined: the prior"
        for *path, key in constant.parameter.targets:
            line = f"{key} = {constant.value:.4g} # +- {error}{note}"
            by_path.setdefault(tuple(path), []).append(line)
    for section, settings in sorted(by_path.items()):
        lines += ["", "[" + ".".join(f'"{name}"' for name in section) + "]", *settings]
    determined = [each.parameter for each in fitted.constants if each.determined]
    lines += [
        "",
        "# The covariance of the logarithms of these constants; one may stand in several places.",
        "[uncertainty]",
        "constants = [",
        *(f"    {json.dumps(['.'.join(each) for each in one.targets])}," for one in determined),
        "]",
        "covariance = [",
        *(
            f"    [{', '.join(f'{each:.3g}' for each in row)}],"
            for row in fitted.covariance.tolist()
        ),
        "]",
    ]
    return "\n".join(lines) + "\n"

"""Published recipes predicted with constants that are fitted to other models' recipes.

Each constant that recipes can determine is multiplied by a factor, the same for all systems but for
the share of the peak that products reach, which is each system's own. The logarithm of a factor has
a prior: none is expected, with the deviation that is known of the constant
(`bfpp/sim/presets/deviations.toml`). A family of models is predicted with factors that fit all
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import exp, log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from bfpp.schedules import TaskGraph
from bfpp.schedules.settings.precision import Format
from bfpp.sim.cluster.cluster import Device
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines.engines import simulate
from bfpp.sim.measurements.recipes import Recipe, recipes

Numbers = npt.NDArray[np.float64]

RESIDUAL = 0.1
"""Residual of a recipe that constants are taken to leave: a standard deviation of its logarithm."""

TOLERANCE = 0.01
"""Relative change at which a fit ends."""

STEP = 0.2
"""The step of derivatives, in deviations: a host that is just fast enough has no slope."""


class Constant(NamedTuple):
    """A constant of devices, the deviation of its logarithm, and how to multiply it.

    Of those of one `cluster` alone, if that is given.
    """

    name: str
    deviation: float
    times: Callable[[Device, float], Device]
    cluster: str | None = None


def _field(name: str) -> Callable[[Device, float], Device]:
    return lambda device, factor: replace(device, **{name: factor * getattr(device, name)})


def _format(name: Format) -> Callable[[Device, float], Device]:
    def times(device: Device, factor: float) -> Device:
        shares = dict(device.format_efficiencies)
        if name in shares:
            shares[name] *= factor
        return replace(device, format_efficiencies=tuple(shares.items()))

    return times


OF_PRODUCTS = 0.1
"""Best shapes reach 0.73 to 0.87 of the peak (bfpp/sim/presets/deviations.toml)."""

OF_FORMATS = 0.15
"""Published products with quantisation are within 16 % of what is predicted (docs/costs.md)."""

CONSTANTS = (
    Constant("seconds between kernels", 0.3, _field("launch_seconds")),
    Constant("seconds of the host", 0.7, _field("host_seconds")),
    *(
        Constant(f"share of {each}", OF_FORMATS, _format(each))
        for each in (Format.FP8, Format.MXFP8, Format.NVFP4)
    ),
    *(
        Constant(f"share on {each}", OF_PRODUCTS, _field("matmul_efficiency"), each)
        for each in ("dgx-b200", "dgx-b300", "dgx-h100", "gb200-nvl72", "gb300-nvl72")
    ),
)


class Case(NamedTuple):
    """Recipes of several releases that are one experiment, and its graph and costs."""

    recipes: Sequence[Recipe]
    graph: TaskGraph
    physical: PhysicalCosts

    @property
    def family(self) -> str:
        return self.recipes[0].family

    def own(self, logarithms: Numbers) -> Numbers:
        """Those of the constants that its cluster has, and zero for others."""
        here = [each.cluster in (None, self.physical.cluster.name) for each in CONSTANTS]
        return np.where(here, logarithms, 0.0)

    def seconds(self, logarithms: Numbers) -> float:
        """The predicted step time, with constants multiplied."""
        device = self.physical.cluster.device
        for constant, value in zip(CONSTANTS, self.own(logarithms).tolist(), strict=True):
            device = constant.times(device, exp(value))
        cluster = replace(self.physical.cluster, device=device)
        return simulate(self.graph, replace(self.physical, cluster=cluster)).step_time

    def errors(self, logarithms: Numbers) -> list[float]:
        """Error of the predicted step time of each recipe, in per cent."""
        seconds = self.seconds(logarithms)
        return [100 * (seconds / each.step_seconds - 1) for each in self.recipes]


class Family(NamedTuple):
    """The factors that fit all other models, and the errors of this one's recipes, by recipe."""

    name: str
    factors: Mapping[str, float]
    errors: Mapping[Recipe, float]
    unfitted: Mapping[Recipe, float]


def families() -> Iterator[Family]:
    """Each family of models, left out."""
    cases = list(_cases())
    for name in sorted({each.family for each in cases}):
        out = [each for each in cases if each.family == name]
        found = _fit([each for each in cases if each.family != name])
        factors = {
            constant.name: exp(value)
            for constant, value in zip(CONSTANTS, found.tolist(), strict=True)
        }
        yield Family(name, factors, _errors(out, found), _errors(out, np.zeros(len(CONSTANTS))))


def _cases() -> Iterator[Case]:
    alike: dict[str, list[Recipe]] = {}
    for recipe in recipes():
        if recipe.refusal is None:
            alike.setdefault(repr((recipe.published, recipe.assumed)), []).append(recipe)
    for each in alike.values():
        experiment = each[0].experiment
        yield Case(each, experiment.graph(), experiment.require_physical())


def _fit(cases: Sequence[Case]) -> Numbers:
    """The logarithms of the factors that are most probable."""
    deviations = np.array([each.deviation for each in CONSTANTS])
    measured = np.array(
        [np.mean([log(each.step_seconds) for each in case.recipes]) for case in cases]
    )

    @cache
    def seconds(number: int, *logarithms: float) -> float:
        return cases[number].seconds(np.array(logarithms))

    def residuals(at: Numbers) -> Numbers:
        predicted = np.log(
            [seconds(number, *case.own(at * deviations)) for number, case in enumerate(cases)]
        )
        return np.concatenate([(predicted - measured) / RESIDUAL, at])

    def slopes(at: Numbers) -> Numbers:
        here, steps = residuals(at), STEP * np.eye(len(at))
        return np.stack([(residuals(at + step) - here) / STEP for step in steps], axis=1)

    start = np.zeros(len(CONSTANTS))
    # Robust, as some models' kernels take twice as long as predicted: they must not decide alone.
    found = least_squares(
        residuals, start, jac=slopes, loss="soft_l1", xtol=TOLERANCE, ftol=TOLERANCE
    )
    logarithms: Numbers = found.x * deviations
    return logarithms


def _errors(cases: Sequence[Case], logarithms: Numbers) -> dict[Recipe, float]:
    return {
        recipe: error
        for case in cases
        for recipe, error in zip(case.recipes, case.errors(logarithms), strict=True)
    }

"""Components of variance of published runs: of machines, of sites and of runs by their kind.

Of each site (a source's runs on one cluster) runs deviate around their median, sites of a machine
around their mean, and machines around none. Machines weigh the same, in one its sites, and in one
its runs: what is asked is how a run on a machine that nobody has seen deviates, at a site that
nobody has seen. All components are then scaled by one factor, so that 80 % are inside of their
intervals with what constants explain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from math import sqrt
from typing import NamedTuple, TypeVar

import numpy as np

from bfpp.sim.experiment.residuals import ANY, Components, Residuals, RunKind
from bfpp.sim.experiment.uncertainty import QUANTILE, Spread

INSIDE = 0.8

LEAST_OF_KIND = 2
"""Sites that runs of a kind are published of, at least, for a deviation of its own."""

Group = TypeVar("Group", bound=Hashable)


class Deviation(NamedTuple):
    """A run's logarithm of measured over predicted seconds, and what its constants explain."""

    machine: str
    site: str
    kind: RunKind
    distance: float
    spread: Spread


def grouped(
    runs: Iterable[Deviation], key: Callable[[Deviation], Group]
) -> dict[Group, list[Deviation]]:
    found: dict[Group, list[Deviation]] = defaultdict(list)
    for run in runs:
        found[key(run)].append(run)
    return dict(found)


def residuals(runs: Sequence[Deviation], known: Sequence[Deviation] = ()) -> Residuals:
    """The components of runs, scaled so that 80 % of a mean machine's are inside.

    Rivals are runs that are predicted with all that is `known` of their sources.
    """
    raw = _unscaled(runs)
    needed = [_needed(run, raw.of(run.kind)) for run in runs]
    scale = _weighted_quantile(needed, weights(runs), INSIDE)
    of_runs = {kind: scale * each for kind, each in raw.run.items()}
    return Residuals(scale * raw.machine, scale * raw.site, of_runs, of_rivals(known))


def of_rivals(runs: Sequence[Deviation]) -> dict[str, float]:
    """By kind: the mean over sites of what 80 % of runs are beyond what constants explain."""
    beyond: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for kind in (str(run.kind), ANY):
            beyond[kind][run.site].append(_beyond(run) / QUANTILE)
    return {
        kind: float(np.mean([np.quantile(each, INSIDE) for each in of.values()]))
        for kind, of in sorted(beyond.items())
    }


def weights(runs: Sequence[Deviation]) -> list[float]:
    """The weight of each run: machines weigh the same, in one its sites, and in one its runs."""
    sites = {
        machine: len({run.site for run in each})
        for machine, each in grouped(runs, lambda run: run.machine).items()
    }
    of_site = {site: len(each) for site, each in grouped(runs, lambda run: run.site).items()}
    return [1 / (len(sites) * sites[run.machine] * of_site[run.site]) for run in runs]


def _unscaled(runs: Sequence[Deviation]) -> Residuals:
    centre = {
        site: float(np.median([run.distance for run in each]))
        for site, each in grouped(runs, lambda run: run.site).items()
    }
    of_machine = grouped(runs, lambda run: run.machine)
    sites = [[centre[site] for site in {run.site for run in each}] for each in of_machine.values()]
    site = sqrt(np.mean([np.var(each, ddof=1) for each in sites if len(each) > 1]))
    squares = [np.mean(each) ** 2 - site**2 / len(each) for each in sites]
    machine = sqrt(max(float(np.mean(squares)), 0.0))
    return Residuals(machine, site, _of_runs(runs, centre), {})


def _of_runs(runs: Sequence[Deviation], centre: dict[str, float]) -> dict[str, float]:
    """By kind: the mean over sites of what 80 % of runs do not deviate more than by."""
    within: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for kind in (str(run.kind), ANY):
            within[kind][run.site].append(abs(run.distance - centre[run.site]))
    return {
        kind: float(np.mean([np.quantile(each, INSIDE) for each in of.values()])) / QUANTILE
        for kind, of in sorted(within.items())
        if len(of) >= LEAST_OF_KIND or kind == ANY
    }


def _needed(run: Deviation, components: Components) -> float:
    """The factor of the components from which on a run is inside of its interval."""
    return _beyond(run) / (QUANTILE * components.total)


def _beyond(run: Deviation) -> float:
    """The distance that constants do not explain, added to theirs in squares."""
    return sqrt(max(run.distance**2 - run.spread.of(run.distance) ** 2, 0.0))


def _weighted_quantile(values: Sequence[float], shares: Sequence[float], quantile: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(np.array(shares)[order])
    return float(np.array(values)[order][np.searchsorted(reached, quantile)])


class Coverage(NamedTuple):
    """Runs that were left out together: their intervals, and the share inside of them."""

    spreads: list[Spread]
    inside: float

    @property
    def low(self) -> float:
        """The mean lower end, relative to the prediction."""
        return float(np.exp(-np.mean([each.faster for each in self.spreads])) - 1)

    @property
    def high(self) -> float:
        """The mean upper end, relative to the prediction."""
        return float(np.exp(np.mean([each.slower for each in self.spreads])) - 1)


def of_unseen(components: Components) -> float:
    """All components: of a machine, and at a site, that nobody has seen."""
    return components.total


def of_run(components: Components) -> float:
    """A run's own, on a machine and at a site that constants were fitted to."""
    return components.run


def left_out(
    others: Sequence[Deviation],
    group: Sequence[Deviation],
    unknown: Callable[[Components], float] = of_unseen,
) -> Coverage:
    """Coverage of a group by the residuals of others; `unknown` says what counts of these."""
    known = residuals(others)
    spreads = [run.spread.wider(unknown(known.of(run.kind))) for run in group]
    inside = [
        abs(run.distance) <= spread.of(run.distance)
        for run, spread in zip(group, spreads, strict=True)
    ]
    return Coverage(spreads, float(np.mean(inside)))

"""Your own runs on a cluster, too few to fit its constants: one factor of its passes, with a prior.

The factor's logarithm is taken to be normal around none, with what machines and sites are known to
deviate by (`bfpp.sim.experiment.residuals`), and a run around its prediction with what runs of its
kind deviate by. What is left of the former is less with every run, the first most of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import exp, hypot, log, sqrt

from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.site import Site
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.residuals import residuals_of
from bfpp.sim.measurements.validation import Case, Measurement, case_of

STEPS = 4
"""Steps of the search for the factor: equal except for the time of communication."""


@dataclass(frozen=True)
class SiteFit:
    """The site that runs show, and the deviation of machine and site without them."""

    cluster: str
    runs: int
    site: Site
    before: float

    @property
    def record(self) -> dict[str, object]:
        """The fit as JSON has it."""
        fit = {"factor": self.site.factor, "deviation": self.site.deviation}
        return {
            "cluster": self.cluster,
            "runs": self.runs,
            **fit,
            "deviation_before": self.before,
        }


def fit_sites(rows: Sequence[Measurement]) -> list[SiteFit]:
    """The factor of each cluster that rows are of."""
    of_cluster = sorted(rows, key=_cluster)
    return [_fit(name, list(each)) for name, each in groupby(of_cluster, key=_cluster)]


def _cluster(row: Measurement) -> str:
    return str(row.experiment.cluster)


def _fit(name: str, rows: Sequence[Measurement]) -> SiteFit:
    cases = [case_of(row) for row in rows]
    known = [residuals_of(case.physical(), case.graph.layout) for case in cases]
    before = max(hypot(each.machine, each.site) for each in known)
    weights = [1 / each.run**2 for each in known]
    precision = sum(weights) + 1 / before**2 if before else sum(weights)
    site = Site(1.0, 0.0)
    for _ in range(STEPS):
        pulled = sum(
            weight * _distance(case, site) for weight, case in zip(weights, cases, strict=True)
        )
        prior = -log(site.factor) / before**2 if before else 0.0
        site = replace(site, factor=site.factor * exp((pulled + prior) / precision))
    return SiteFit(name, len(rows), replace(site, deviation=1 / sqrt(precision)), before)


def _distance(case: Case, site: Site) -> float:
    """The logarithm of measured over predicted seconds, with a factor."""
    physical = case.physical()
    of_site: Cluster = replace(physical.cluster, site=site)
    predicted = simulate(case.graph, replace(physical, cluster=of_site)).step_time
    return log(case.measured.step_seconds / predicted)


def sites_text(fits: Iterable[SiteFit], source: str) -> str:
    """The factors as a file of constants."""
    lines = [f"# Fitted by `bfpp fit` to {source!a}.", 'format = "bfpp constants 1"']
    for each in fits:
        lines += [
            "",
            f'["clusters"."{each.cluster}"."site"]',
            f"factor = {each.site.factor:.4g} # of the seconds of passes, by {each.runs} runs",
            f"deviation = {each.site.deviation:.3g} # of its logarithm; {each.before:.3g} without",
        ]
    return "\n".join(lines) + "\n"

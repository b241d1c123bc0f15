"""Components of variance that constants do not explain of published runs.

Theory of operation. Of the logarithm of measured over predicted step time, some is common to all
runs on a machine (its clocks under load, its libraries), some to all runs at a site (its network,
its operation, its software), and some is a run's own, by its kind. `presets/residuals.toml` has a
standard deviation of each, from published runs (docs/accuracy.md): those that leave 80 % of the
runs of a mean machine inside their intervals.

- A machine whose kernels were measured (`bfpp measure`) has no deviation of its machine.
- A machine and site that constants were fitted to (`bfpp fit`) have neither, or what its runs left.
- Two runs on one machine at one site share both, and much of what is a run's own: which is faster
  depends on what constants leave of runs whose source they know (`rival`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import hypot
from typing import NamedTuple

from bfpp.schedules import Layout
from bfpp.schedules.settings.attention import Attention
from bfpp.schedules.settings.recomputation import NO_RECOMPUTATION
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.presets.files import PRESETS, fitted_uncertainty, read_toml

ANY = "any"
"""The kind of runs of which none of their own kind are published."""


class RunKind(NamedTuple):
    """Kind of run by which its own deviation is grouped."""

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


class Components(NamedTuple):
    """Standard deviations of a logarithm: of a machine, of a site, and of a run itself."""

    machine: float
    site: float
    run: float

    @property
    def total(self) -> float:
        """All of them together."""
        return hypot(self.machine, self.site, self.run)


@dataclass(frozen=True)
class Residuals:
    """Components of variance: of any machine and site, and of runs by their kind.

    `rival` has, by kind, the deviation of a run beside others of its own source.
    """

    machine: float
    site: float
    run: Mapping[str, float]
    rival: Mapping[str, float]

    def of(self, kind: RunKind) -> Components:
        """Those of a kind of run on an unmeasured machine and site."""
        return Components(self.machine, self.site, self.run.get(str(kind), self.run[ANY]))


@cache
def shipped_residuals() -> Residuals:
    """The residuals that come with the package."""
    return Residuals(**read_toml("constants", PRESETS / "residuals.toml"))


def residuals_of(
    physical: PhysicalCosts, layout: Layout, known: Residuals | None = None
) -> Components:
    """Deviations of a run that are not explained; by the shipped residuals by default."""
    residuals = (known or shipped_residuals()).of(kind_of(physical, layout))
    cluster = physical.cluster
    if cluster.site is not None:
        return residuals._replace(machine=0.0, site=cluster.site.deviation)
    if _is_fitted(cluster):
        return residuals._replace(machine=0.0, site=0.0)
    return residuals._replace(machine=0.0) if cluster.deviations else residuals


def rival_residual(physical: PhysicalCosts, layout: Layout) -> float:
    """Deviation of a run that is compared with others on the same cluster."""
    known = shipped_residuals().rival
    return known.get(str(kind_of(physical, layout)), known[ANY])


def _is_fitted(cluster: Cluster) -> bool:
    """True if shipped constants of a cluster were fitted to training runs on it, all together."""
    targets = (target.split(".") for each in fitted_uncertainty()["constants"] for target in each)
    return any(kind == "clusters" and name == cluster.name for kind, name, *_ in targets)

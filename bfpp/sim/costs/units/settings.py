"""Settings that a unit's seconds and bytes depend on, as protocols and as one shared value.

Cost models of many configurations have equal settings: results are cached in the one `Setting`
that `setting_of` gives for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

from bfpp.schedules import Layout, Sharding
from bfpp.schedules.columns import Seconds
from bfpp.schedules.settings.recomputation import NO_RECOMPUTATION, Recomputation
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.software_profiles import Implementation
from bfpp.sim.engines.caching import OneSample
from bfpp.sim.models.unit_layers import Layers
from bfpp.sim.operators.operators import Execution

SETTINGS = 1024
"""Number of cached settings, each with the results that are cached in it."""


class ComputeSettings(Protocol):
    """Settings that decide the seconds of compute."""

    @property
    def cluster(self) -> Cluster:
        """The cluster that trains the model."""

    @property
    def execution(self) -> Execution:
        """Execution of a micro-batch on one device."""

    @property
    def recomputation(self) -> Recomputation:
        """Activations that the backward pass recomputes."""

    @property
    def implementation(self) -> Implementation:
        """The software profile."""

    @property
    def setting(self) -> Setting:
        """All of these, as one value."""


class UnitSettings(ComputeSettings, OneSample, Protocol):
    """Settings that decide the seconds and bytes of units: compute, and the cut of layers."""

    def layers(self, layout: Layout) -> Layers:
        """The layers of each unit, by kind."""


class OffloadSettings(UnitSettings, Protocol):
    """Settings of units whose activations are offloaded."""

    @property
    def offload_modules(self) -> frozenset[str]:
        """Modules whose inputs are offloaded; without any, all saved activations are."""

    @property
    def offload_share(self) -> float:
        """The share of those that leaves the device."""


class StateSettings(UnitSettings, Protocol):
    """Settings of units, and of the share of their state that a device keeps."""

    def state_share(self, layout: Layout, sharding: Sharding, stride: int | None = None) -> float:
        """The share of its parameters' state that a device keeps and updates."""

    def by_stride(self, layout: Layout) -> dict[int, Seconds]:
        """The parameters of each unit, by how far apart the devices are that keep the same."""


@dataclass(frozen=True)
class Setting:
    """Everything that decides a part's seconds and saved bytes, in whichever unit it is.

    Results are cached in it, and equal settings are one object (`setting_of`).
    """

    cluster: Cluster
    execution: Execution
    recomputation: Recomputation
    implementation: Implementation

    @property
    def setting(self) -> Setting:
        """The setting itself."""
        return self

    @cached_property
    def without_recomputation(self) -> Setting:
        """The setting in which work takes as long, and none is done again."""
        return setting_of(self.cluster, self.execution, NO_RECOMPUTATION, self.implementation)


setting_of = lru_cache(SETTINGS)(Setting)
"""The one setting that is equal to these."""

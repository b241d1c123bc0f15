"""The frameworks that a search can be for: the limits of each, and whose software it is."""

from __future__ import annotations

from typing import Any, NamedTuple

from bfpp.launchers.frameworks import FRAMEWORKS
from bfpp.launchers.launch import Launch
from bfpp.launchers.megatron import limits as megatron
from bfpp.launchers.own import limits as own
from bfpp.launchers.torchtitan import limits as torchtitan
from bfpp.schedules import InvalidConfiguration, Per
from bfpp.schedules.errors import did_you_mean
from bfpp.sim.cluster.software_profiles import BFPP, CURRENT, TORCHTITAN, Implementation
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.search.problem import FrameworkLimits

ANY, NONE = "any", "none"
"""Whatever at least one of the frameworks can launch, or whatever can be predicted."""


class Target(NamedTuple):
    """A framework that a search can be for, or any of several.

    The limits of each, the implementation that predicts it (None: the cluster's), and the values
    that it has other choices of.
    """

    limits: tuple[FrameworkLimits, ...]
    implementation: str | None
    ranges: dict[str, tuple[Any, ...]]

    def limits_with(self, implementation: Implementation) -> tuple[FrameworkLimits, ...]:
        """The limits of a search with this software: one of a former year no framework launches."""
        return () if self.implementation is None and implementation.year else self.limits


def _limits(name: str, room: Any) -> FrameworkLimits:
    return FrameworkLimits(
        name,
        Launch,
        room.of_pipeline,
        room.of_communication,
        room.of_setting,
        room.of_offload,
        room.as_run,
    )


LIMITS = {
    "megatron": _limits("megatron", megatron),
    "torchtitan": _limits("torchtitan", torchtitan),
    "bfpp": _limits("bfpp", own),
}
"""The limits of each framework, by name."""

RESHARDING = {"gather_per": (Per.RUN, Per.STEP)}
"""FSDP of torchtitan: it reshards weights after the forward pass, or keeps them for the step."""

TARGETS = {
    ANY: Target(tuple(LIMITS.values()), None, RESHARDING),
    "megatron": Target((LIMITS["megatron"],), CURRENT.name, {}),
    "torchtitan": Target((LIMITS["torchtitan"],), TORCHTITAN.name, RESHARDING),
    "bfpp": Target((LIMITS["bfpp"],), BFPP.name, {}),
    NONE: Target((), None, {}),
}
"""By name."""


def find_target(name: str) -> Target:
    """The target of that name; raises `InvalidConfiguration` for another."""
    if name not in TARGETS:
        reason = f"{name!r} is not one of {', '.join(TARGETS)}{did_you_mean(name, TARGETS)}"
        raise InvalidConfiguration("for", reason)
    return TARGETS[name]


def launches_of(experiment: Experiment) -> dict[str, str | None]:
    """The frameworks that a launch file can be written for: None, or why it cannot be launched."""
    return {name: LIMITS[name].reason(experiment) for name in FRAMEWORKS}

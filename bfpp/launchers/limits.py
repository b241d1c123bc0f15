"""The frameworks that a search can be for: the limits of each, and whose software it is."""

from __future__ import annotations

from typing import Any, NamedTuple

from bfpp.launchers import own_limits
from bfpp.launchers.frameworks import FRAMEWORKS
from bfpp.launchers.launch import Launch
from bfpp.launchers.megatron import limits as megatron
from bfpp.launchers.torchtitan import limits as torchtitan
from bfpp.schedules import InvalidConfiguration, Per
from bfpp.schedules.errors import did_you_mean
from bfpp.sim.cluster.software_profiles import BFPP, CURRENT, TORCHTITAN
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.search.problem import FrameworkLimits

ANY = "any"
"""Whatever one of the frameworks can launch: `bfpp run` takes every order of passes."""


class Target(NamedTuple):
    """A framework that a search can be for.

    Its limits, the implementation that predicts it (None: the cluster's), and the values that it
    has other choices of.
    """

    limits: FrameworkLimits | None
    implementation: str | None
    ranges: dict[str, tuple[Any, ...]]


def _limits(name: str, room: Any) -> FrameworkLimits:
    return FrameworkLimits(
        name, Launch, room.of_pipeline, room.of_communication, room.of_setting, room.as_run
    )


TARGETS = {
    ANY: Target(None, None, {}),
    "megatron": Target(_limits("megatron", megatron), CURRENT.name, {}),
    # FSDP that reshards weights after the forward pass, or keeps them for the step.
    "torchtitan": Target(
        _limits("torchtitan", torchtitan), TORCHTITAN.name, {"gather_per": (Per.RUN, Per.STEP)}
    ),
    "bfpp": Target(_limits("bfpp", own_limits), BFPP.name, {}),
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
    limits = {name: target.limits for name, target in TARGETS.items() if name in FRAMEWORKS}
    return {name: each and each.reason(experiment) for name, each in limits.items()}

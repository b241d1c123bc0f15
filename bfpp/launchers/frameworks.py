"""The frameworks that an experiment can be written for, by name."""

from __future__ import annotations

from collections.abc import Callable

from bfpp.launchers.launch import FrameworkConfig, Launch
from bfpp.launchers.megatron.command import command
from bfpp.launchers.torchtitan.settings import settings
from bfpp.sim.experiment.experiment import Experiment

FRAMEWORKS: dict[str, Callable[[Launch], FrameworkConfig]] = {
    "megatron": command,
    "torchtitan": settings,
}


def framework_config(experiment: Experiment, framework: str) -> FrameworkConfig:
    """The experiment for one of `FRAMEWORKS`; raises `InvalidConfiguration` without a model."""
    experiment.require_physical()
    launch = Launch(experiment)
    config = FRAMEWORKS[framework](launch)
    return config._replace(missing=(*config.missing, *launch.unsaid()))

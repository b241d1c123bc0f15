"""The frameworks that an experiment can be written for, by name."""

from __future__ import annotations

from collections.abc import Callable

from bfpp.launchers import megatron, torchtitan
from bfpp.launchers.launch import FrameworkConfig, Launch
from bfpp.sim.experiment.experiment import Experiment

FRAMEWORKS: dict[str, Callable[[Launch], FrameworkConfig]] = {
    "megatron": megatron.command,
    "torchtitan": torchtitan.settings,
}


def framework_config(experiment: Experiment, framework: str) -> FrameworkConfig:
    """The experiment for one of `FRAMEWORKS`; raises `InvalidConfiguration` without a model."""
    experiment.require_physical()
    launch = Launch(experiment)
    config = FRAMEWORKS[framework](launch)
    return config._replace(missing=(*config.missing, *launch.unsaid()))

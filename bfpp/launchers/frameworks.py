"""The frameworks that an experiment can be written for, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from bfpp.launchers.launch import FrameworkConfig, Launch
from bfpp.launchers.megatron.command import command as megatron
from bfpp.launchers.megatron.releases import WRITTEN
from bfpp.launchers.releases import Number, release_of
from bfpp.launchers.torchtitan import command as torchtitan
from bfpp.launchers.torchtitan.settings import settings
from bfpp.schedules import InvalidConfiguration
from bfpp.sim.experiment.experiment import Experiment

Writer = Callable[[Launch], FrameworkConfig]


class Framework(NamedTuple):
    """A framework: the package whose release counts, and the writers by their first release."""

    package: str
    writers: dict[Number, Writer]

    def writer(self, number: Number) -> Writer:
        """The writer for a release; raises `InvalidConfiguration` for one that is too old."""
        since = [each for each in self.writers if each <= number]
        if not since:
            oldest = ".".join(map(str, min(self.writers)))
            reason = f"the oldest of {self.package} that is written for is {oldest}"
            raise InvalidConfiguration("release", reason)
        return self.writers[max(since)]


FRAMEWORKS = {
    "megatron": Framework(
        "megatron-core", {since: partial(megatron, release=since) for since in WRITTEN}
    ),
    "torchtitan": Framework(
        "torchtitan",
        {
            (0, 0): settings,
            torchtitan.SINCE: torchtitan.of_samples,
            torchtitan.COUNTS_TOKENS: torchtitan.of_tokens,
        },
    ),
}


def framework_config(
    experiment: Experiment, framework: str, release: Number | None = None
) -> FrameworkConfig:
    """The experiment for one of `FRAMEWORKS`; raises `InvalidConfiguration` without a model.

    For the release that is asked for or installed, or else the newest that is known.
    """
    experiment.require_physical()
    launch, chosen = Launch(experiment), FRAMEWORKS[framework]
    written_for = release_of(chosen.package, release)
    config = chosen.writer(written_for.number)(launch)
    missing = (*config.missing, *launch.unsaid())
    return config._replace(missing=missing, release=str(written_for))

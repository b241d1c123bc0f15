"""An uneven experiment to be remedied, and its sampled steps with other effects or sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bfpp.schedules.columns import Seconds
from bfpp.sim.engines.engines import DEFAULT
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.uneven import replicated_step, sources_of
from bfpp.sim.unevenness.replicated_step import Effect, ReplicatedStep
from bfpp.sim.unevenness.sources import UnevenSource
from bfpp.sim.unevenness.uneven_steps import StepReplays, UnevenSteps, drawn_effects

MOST_VALUES = 2**24
"""Tasks of all replicas and steps that remedies are tried on."""


@dataclass(frozen=True, eq=False)
class UnevenCase:
    """An experiment, and its steps as they were sampled."""

    experiment: Experiment
    uneven: UnevenSteps

    @cached_property
    def step(self) -> ReplicatedStep:
        """One replica's graph and costs."""
        return replicated_step(self.experiment, self.experiment.graph(), self.experiment.costs)

    @cached_property
    def sources(self) -> list[UnevenSource]:
        """The sources of unevenness."""
        return sources_of(self.experiment)

    @cached_property
    def samples(self) -> int:
        """Sampled steps that remedies are tried on: fewer of large ones."""
        most = max(MOST_VALUES // int(np.prod(self.step.shape)), 1)
        return min(len(self.uneven.seconds), most)

    @property
    def seconds(self) -> Seconds:
        """Seconds of these steps as they are."""
        return self.uneven.seconds[: self.samples]

    @cached_property
    def effects(self) -> list[list[Effect]]:
        """The effects of its sources in each of these steps."""
        return list(self._drawn(self.sources))

    def _drawn(self, sources: Sequence[UnevenSource]) -> Iterator[list[Effect]]:
        return drawn_effects(self.step, sources, self.samples, self.experiment.sample_seed)

    def with_sources(self, sources: Sequence[UnevenSource]) -> Seconds:
        """Seconds of the steps with other sources."""
        return self.simulated(self.step, self._drawn(sources))

    def with_source(self, at: int, source: UnevenSource) -> Seconds:
        """Seconds of the steps with another source in the place of one."""
        return self.with_sources([*self.sources[:at], source, *self.sources[at + 1 :]])

    def of_experiment(
        self, experiment: Experiment, sources: Sequence[UnevenSource] | None = None
    ) -> Seconds:
        """Seconds of the steps of another experiment, with the same draws where they can be."""
        other = replace(self, experiment=experiment)
        return other.with_sources(self.sources if sources is None else sources)

    def simulated(self, step: ReplicatedStep, effects: Iterable[Sequence[Effect]]) -> Seconds:
        """Seconds of steps with these effects."""
        replays = StepReplays(step, DEFAULT)
        return np.array([replays.seconds(each) for each in effects])

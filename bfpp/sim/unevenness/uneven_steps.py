"""Sampled steps of replicas that differ: how long they take, and which part each source has.

With the definitions of the analysis of measured jobs (`bfpp.traces.stragglers`): the slowdown is
the mean step over the mean even step; that of a source, with all others made even; its share, what
of the slowdown goes away where it alone is made even. Shares need not add up to one: what two
sources cause together, either's end removes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from bfpp.schedules.columns import Integers, Seconds
from bfpp.schedules.replicas.joint_graph import JointGraph, joined
from bfpp.sim.engines.engines import DEFAULT, simulate_joint
from bfpp.sim.unevenness.replicated_step import Effect, ReplicatedStep
from bfpp.sim.unevenness.sources import UnevenSource
from bfpp.sim.unevenness.uneven_costs import UnevenCosts, uneven_costs
from bfpp.traces.timeline.joint_timeline import JointTimeline

QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True)
class SourcePart:
    """One source's part: slowdown with all others made even, and its share, by removal.

    The share is None where nothing is slower than an even step.
    """

    name: str
    slowdown: float
    share: float | None


@dataclass(frozen=True, eq=False)
class UnevenSteps:
    """Seconds of sampled steps, of the same steps evenly divided, and by source.

    `typical` is the step that takes the median, with one replica for all that are alike in it:
    `of_replica` has its place for each replica. `alone` has a row for each source, with all others
    made even, `without` with that one made even.
    """

    sources: tuple[str, ...]
    seconds: Seconds
    even: Seconds
    alone: Seconds
    without: Seconds
    typical: JointTimeline
    costs: UnevenCosts

    @property
    def of_replica(self) -> Integers:
        """For each replica, its place among those of the typical step."""
        return self.costs.of_replica

    @property
    def number(self) -> int:
        """The number of the typical step among those sampled."""
        return median_of(self.seconds)

    @property
    def mean(self) -> float:
        """Mean seconds of a step."""
        return float(self.seconds.mean())

    @property
    def quantiles(self) -> dict[float, float]:
        """Seconds that such shares of the steps take at most."""
        return {each: float(np.quantile(self.seconds, each)) for each in QUANTILES}

    @property
    def slowdown(self) -> float:
        """Mean step over mean even step."""
        return self._over_even(self.seconds)

    @cached_property
    def parts(self) -> list[SourcePart]:
        """The part of each source, the largest first."""
        lost = float((self.seconds - self.even).mean())
        parts = [
            SourcePart(
                name,
                self._over_even(alone),
                float((self.seconds - without).mean()) / lost if lost else None,
            )
            for name, alone, without in zip(self.sources, self.alone, self.without, strict=True)
        ]
        return sorted(parts, key=lambda part: -part.slowdown)

    @cached_property
    def slowest(self) -> int:
        """The place, in the typical step, of the replica that others wait for longest."""
        graph = self.typical.graph
        place = np.searchsorted(graph.begins, self.typical.critical_path, side="right") - 1
        spent = np.bincount(place, self._seconds_on_path, len(graph.replicas))
        return int(spent.argmax())

    @property
    def _seconds_on_path(self) -> Seconds:
        path = self.typical.critical_path
        on_path: Seconds = self.typical.end[path] - self.typical.start[path]
        return on_path

    def _over_even(self, seconds: Seconds) -> float:
        even = float(self.even.mean())
        return float(seconds.mean()) / even if even else 1.0


def uneven_steps(
    step: ReplicatedStep,
    sources: Sequence[UnevenSource],
    samples: int,
    seed: int = 0,
    engine: str = DEFAULT,
) -> UnevenSteps:
    """Simulate as many steps as samples, or one where no source is random."""
    replay = StepReplays(step, engine)
    if not any(source.is_random for source in sources):
        samples = 1
    rows, drawn = [], []
    for effects in drawn_effects(step, sources, samples, seed):
        even = [each.even(step, effect) for each, effect in zip(sources, effects, strict=True)]
        rows.append([replay.seconds(each) for each in _variants(effects, even)])
        drawn.append(effects)
    seconds = np.array(rows).T
    costs = uneven_costs(step, drawn[median_of(seconds[0])])
    count = len(sources)
    return UnevenSteps(
        tuple(each.name for each in sources),
        seconds[0],
        seconds[1],
        seconds[2 : 2 + count],
        seconds[2 + count :],
        replay.timeline(costs),
        costs,
    )


def median_of(seconds: Seconds) -> int:
    """The place of the median; of two, the first."""
    return int(np.argsort(seconds, kind="stable")[(len(seconds) - 1) // 2])


def drawn_effects(
    step: ReplicatedStep, sources: Sequence[UnevenSource], samples: int, seed: int
) -> Iterator[list[Effect]]:
    """The effects of sources in each of so many steps: of a seed always the same."""
    for number in range(samples):
        generators = generators_of(number, len(sources), seed)
        yield [each.effect(step, random) for each, random in zip(sources, generators, strict=True)]


def generators_of(number: int, sources: int, seed: int) -> list[np.random.Generator]:
    """The generators of sources in a step: of a seed always the same."""
    return np.random.default_rng([seed, number]).spawn(sources)


def _variants(effects: list[Effect], even: list[Effect]) -> Iterator[list[Effect]]:
    """A step as it is, evenly, with each source alone, and without each."""
    yield effects
    yield even
    for this in range(len(effects)):
        yield [effects[at] if at == this else even[at] for at in range(len(effects))]
    for this in range(len(effects)):
        yield [even[at] if at == this else effects[at] for at in range(len(effects))]


@dataclass(eq=False)
class StepReplays:
    """Replays of a step's replicas, whose joint graphs are made and checked once."""

    step: ReplicatedStep
    engine: str
    graphs: dict[tuple[int, int], JointGraph] = field(default_factory=dict)

    def seconds(self, effects: Sequence[Effect]) -> float:
        """Seconds of a step with these effects."""
        return self.timeline(uneven_costs(self.step, effects)).step_time

    def timeline(self, costs: UnevenCosts) -> JointTimeline:
        """The timeline of replicas with these costs."""
        size = len(costs.replicas), costs.groups
        if size not in self.graphs:
            self.graphs[size] = joined([self.step.graph] * size[0], costs.groups)
        return simulate_joint(self.graphs[size], costs.replicas, self.engine)

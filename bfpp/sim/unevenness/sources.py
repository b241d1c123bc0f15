"""Sources of unevenness; those that slow an even step: devices, links, jitter and pauses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import NONE
from bfpp.sim.unevenness.places import (
    LINK,
    NODE,
    RANK,
    REPLICA,
    STAGE,
    PlacedNumber,
    chosen,
    parse_placed,
    require_within,
)
from bfpp.sim.unevenness.replicated_step import NOTHING, Effect, ReplicatedStep


class UnevenSource(Protocol):
    """Something that makes tasks differ."""

    name: ClassVar[str]

    @property
    def is_random(self) -> bool:
        """True if its effect is drawn anew for each step."""

    def effect(self, step: ReplicatedStep, random: np.random.Generator) -> Effect:
        """Its effect on the tasks of a step."""

    def even(self, step: ReplicatedStep, effect: Effect) -> Effect:
        """The rest of such an effect where it is the same everywhere."""


class SlowdownSource:
    """A source without which nothing would be slower: an even step has none of it."""

    @property
    def is_random(self) -> bool:
        """By default, there is chance in it."""
        return True

    def even(self, step: ReplicatedStep, effect: Effect) -> Effect:
        """Nothing."""
        del step, effect
        return NOTHING


@dataclass(frozen=True)
class SlowDevices(SlowdownSource):
    """Devices whose passes and updates take so many times as long."""

    name: ClassVar[str] = "slow"
    is_random = False
    PLACES: ClassVar[tuple[str, ...]] = (RANK, REPLICA, STAGE, NODE)

    places: tuple[PlacedNumber, ...]

    @classmethod
    def parse(cls, text: str) -> SlowDevices:
        """From `rank=3:1.2 replica=1,rank=0:1.5`."""
        return cls(parse_placed(cls.name, text, cls.PLACES))

    def effect(self, step: ReplicatedStep, random: np.random.Generator) -> Effect:
        """A factor of what these devices compute."""
        del random
        graph, factor = step.graph, np.ones(step.shape)
        computes = ~step.is_transfer & ~step.is_collective
        columns: dict[str, np.ndarray] = {
            REPLICA: np.arange(step.replicas)[:, np.newaxis],
            RANK: graph.rank[np.newaxis],
            STAGE: graph.stage[np.newaxis],
        }
        sizes = {REPLICA: step.replicas, RANK: graph.layout.pp, STAGE: graph.layout.stages}
        for each in self.places:
            if NODE in each.places:
                columns[NODE], sizes[NODE] = _on_node(step, each.places[NODE][0])
            require_within(self.name, each, sizes)
            factor = np.where(chosen(each, columns) & computes, factor * each.value, factor)
        return Effect(factor, NOTHING.added)


def _on_node(step: ReplicatedStep, node: int) -> tuple[np.ndarray, int]:
    """The number of a node where a task is on some device of it, else -1; and all nodes.

    Devices are numbered from tensor parallelism outwards, pipeline ranks last.
    """
    if step.physical is None:
        raise InvalidConfiguration("slow", "node= needs --model and --cluster")
    degrees, graph = step.physical.degrees, step.graph
    together, each_node = degrees.tp * degrees.cp, step.physical.cluster.gpus_per_node
    replica = np.arange(step.replicas)[:, np.newaxis]
    first = (graph.rank[np.newaxis] * step.replicas + replica) * together
    is_on = (first // each_node <= node) & ((first + together - 1) // each_node >= node)
    nodes = -(-graph.layout.pp * step.replicas * together // each_node)
    return np.where(is_on, node, NONE), nodes


@dataclass(frozen=True)
class SlowLinks(SlowdownSource):
    """Links over which communication takes so many times as long.

    `link=2-3` is that of two pipeline ranks, in both directions; `rank=3` all transfers and
    data-parallel collectives of a rank. A collective is as slow as its slowest member.
    """

    name: ClassVar[str] = "slow_links"
    is_random = False
    PLACES: ClassVar[tuple[str, ...]] = (LINK, RANK, REPLICA)

    places: tuple[PlacedNumber, ...]

    @classmethod
    def parse(cls, text: str) -> SlowLinks:
        """From `link=2-3:2 replica=1,rank=0:1.5`."""
        return cls(parse_placed(cls.name, text, cls.PLACES))

    def effect(self, step: ReplicatedStep, random: np.random.Generator) -> Effect:
        """A factor of transfers and collectives."""
        del random
        graph, factor = step.graph, np.ones(step.shape)
        sizes = {REPLICA: step.replicas, RANK: graph.layout.pp}
        for each in self.places:
            require_within(self.name, each, sizes)
            slow = step.is_transfer | (step.is_collective & (LINK not in each.places))
            if LINK in each.places:
                one, other = each.places[LINK]
                slow &= (graph.rank == one) & (graph.peer == other) | (
                    (graph.rank == other) & (graph.peer == one)
                )
            if RANK in each.places:
                slow &= (graph.rank == each.places[RANK]) | (graph.peer == each.places[RANK])
            of_replicas = np.ones((step.replicas, 1), dtype=bool)
            if REPLICA in each.places:
                of_replicas = np.arange(step.replicas)[:, np.newaxis] == each.places[REPLICA]
            factor = np.where(of_replicas & slow, factor * each.value, factor)
        return Effect(factor, NOTHING.added)


@dataclass(frozen=True)
class PassJitter(SlowdownSource):
    """Passes that take more or less than their mean, each by itself: log-normally.

    `deviation` is the standard deviation, as a share of the mean.
    """

    name: ClassVar[str] = "jitter"

    deviation: float

    def effect(self, step: ReplicatedStep, random: np.random.Generator) -> Effect:
        """A factor of each pass, whose mean is 1."""
        sigma = float(np.sqrt(np.log1p(self.deviation**2)))
        drawn = random.lognormal(-(sigma**2) / 2, sigma, step.shape)
        return Effect(np.where(step.graph.is_compute, drawn, 1.0), NOTHING.added)


@dataclass(frozen=True)
class Pause:
    """Seconds for which a worker stops, once in `steps` steps, if it is at some place."""

    name: str
    seconds: float
    steps: float
    at: PlacedNumber


@dataclass(frozen=True)
class Pauses(SlowdownSource):
    """Garbage collection, data loading and the like: a worker stops at some pass of its own.

    A worker is a pipeline rank of a replica; each stops by itself, or all `together`.
    """

    name: ClassVar[str] = "pauses"
    PLACES: ClassVar[tuple[str, ...]] = (RANK, REPLICA)

    pauses: tuple[Pause, ...]
    together: bool = False

    @classmethod
    def parse(cls, text: str) -> Pauses:
        """From `gc:0.3/50 data:0.1/20@rank=0`: seconds, and once in how many steps."""
        return cls(tuple(map(cls._pause, text.split())))

    @classmethod
    def _pause(cls, text: str) -> Pause:
        what, _, where = text.partition("@")
        name, _, numbers = what.partition(":")
        seconds, slash, steps = numbers.partition("/")
        form = f"{text!r} is not NAME:SECONDS/STEPS, such as gc:0.3/50"
        if not (name and slash):
            raise InvalidConfiguration(cls.name, form)
        length, every = (
            parse_placed(cls.name, f"rank=0:{number}", cls.PLACES)[0].value
            for number in (seconds, steps)
        )
        if every < 1:
            raise InvalidConfiguration(cls.name, f"{form}, with one step at least")
        at = parse_placed(cls.name, f"{where}:1", cls.PLACES)[0] if where else PlacedNumber((), 1.0)
        return Pause(name, length, every, at)

    def effect(self, step: ReplicatedStep, random: np.random.Generator) -> Effect:
        """Seconds more of a pass, for each worker that stops in this step."""
        graph, added = step.graph, np.zeros(step.shape)
        workers = step.replicas, graph.layout.pp
        start, passes = graph.compute_tasks
        columns = {
            REPLICA: np.arange(step.replicas)[:, np.newaxis],
            RANK: np.arange(graph.layout.pp)[np.newaxis],
        }
        for each in self.pauses:
            require_within(self.name, each.at, {REPLICA: workers[0], RANK: workers[1]})
            alike = (1, 1) if self.together else workers
            stops = (random.random(alike) < 1 / each.steps) & chosen(each.at, columns)
            stops = np.broadcast_to(stops, workers)
            when = start[:-1] + (random.random(alike) * np.diff(start)).astype(np.int64)
            when = np.broadcast_to(when, workers)
            replica, rank = np.nonzero(stops)
            added[replica, passes[when[replica, rank]]] += each.seconds
        return Effect(NOTHING.factor, added)

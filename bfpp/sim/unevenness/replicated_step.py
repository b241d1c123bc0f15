"""A step of replicas, before anything makes them differ; and the effect of what does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bfpp.schedules import Degrees, TaskGraph
from bfpp.schedules.columns import Flags, Integers, Seconds
from bfpp.schedules.operations.operations import OPERATIONS, collectives, transfers
from bfpp.sim.costs.model_on_cluster import ModelOnCluster
from bfpp.sim.engines.cost_model import Costs


@dataclass(frozen=True, eq=False)
class ReplicatedStep:
    """One replica's graph and costs, and how many replicas there are.

    `physical` is the model on its cluster, if the costs are such.
    """

    graph: TaskGraph
    costs: Costs
    degrees: Degrees
    microbatch_size: int = 1
    physical: ModelOnCluster | None = None

    @property
    def replicas(self) -> int:
        """Data-parallel replicas."""
        return self.degrees.dp

    @property
    def shape(self) -> tuple[int, int]:
        """Replicas and tasks of one: a number for each is an array of this shape."""
        return self.replicas, len(self.graph)

    @property
    def in_lockstep(self) -> int:
        """Replicas that exchange tokens of experts in each layer, and so run as one."""
        return max(1, self.degrees.ep // (self.degrees.tp * self.degrees.cp))

    @cached_property
    def microbatch(self) -> Integers:
        """For each task, its whole micro-batch, of which it may be a slice."""
        numbers: Integers = self.graph.microbatch // self.graph.layout.slices
        return numbers

    @cached_property
    def is_transfer(self) -> Flags:
        """Transfers between pipeline ranks."""
        return np.isin(self.graph.operation, transfers())

    @cached_property
    def is_collective(self) -> Flags:
        """Collectives of data-parallel replicas."""
        return np.isin(self.graph.operation, collectives(self.graph.communication))

    def with_effects(self, seconds: Seconds, effects: Iterable[Effect]) -> Seconds:
        """Seconds of tasks by replica, with effects one after the other."""
        changed: Seconds = np.broadcast_to(seconds, self.shape)
        for effect in effects:
            changed = changed * effect.factor + effect.added
        return changed

    def by_kind(self, values: Seconds) -> Seconds:
        """The mean of a value over replicas and micro-batches, for each task: by its kind."""
        kind = self.graph.kinds.of_task
        mean = np.broadcast_to(values, self.shape).mean(axis=0)
        sums = np.bincount(kind, mean) / np.bincount(kind)
        alike: Seconds = sums[kind]
        return alike

    def of_passes(self, by_operation: Seconds, default: float = 0.0) -> Seconds:
        """For each task, the value of its operation and unit; of others, the default."""
        found = by_operation[self.graph.operation, self.graph.unit]
        return np.where(self.graph.is_compute, found, default)

    def same_for_passes(self, value: float) -> Seconds:
        """A value for each operation and unit."""
        return np.full((len(OPERATIONS), self.graph.layout.units), value)


class Effect(NamedTuple):
    """A source's effect on tasks: their seconds and bytes times a factor, and seconds more.

    Either has a row for each replica, or one for all; and a column for each task, or one.
    """

    factor: Seconds
    added: Seconds


NOTHING = Effect(np.ones((1, 1)), np.zeros((1, 1)))

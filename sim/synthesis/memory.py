"""What a stage keeps of a micro-batch, and what a rank may keep: counted, or in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from bfpp.schedules import InvalidConfiguration, Layout
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.counts import peak_microbatches
from bfpp.sim.activations import unit_activations
from bfpp.sim.experiment import Experiment
from bfpp.sim.memory import CONTEXT, RESERVED, least_memories, rank_memories
from bfpp.traces.memory import GIGABYTE

FIELD = "memory_limit"

Limits = float | Sequence[float] | None
"""None, one for all ranks, or one a rank."""


class Memory(Protocol):
    """By stage and by rank, in whatever unit."""

    @property
    def sizes(self) -> Numbers:
        """What each stage keeps of a micro-batch."""
        ...

    @property
    def limits(self) -> Numbers:
        """The most that each rank may keep."""
        ...

    def excess(self, experiment: Experiment) -> Numbers:
        """By rank: how much more than its limit the experiment's order keeps."""
        ...


@dataclass(frozen=True, eq=False)
class Counted:
    """In micro-batches of a rank's work."""

    sizes: Numbers
    limits: Numbers

    def excess(self, experiment: Experiment) -> Numbers:
        """From the graph: what it counts is what the search counts."""
        more: Numbers = peak_microbatches(experiment.graph()) - self.limits
        more[np.abs(more) < 1e-9] = 0.0
        return more


@dataclass(frozen=True, eq=False)
class Reserved:
    """In bytes: of what a device may reserve, what activations have that are kept.

    Besides those there are the training state and buffers, and what the fullest unit needs while
    it runs backward. What an order has besides (halves of backward passes that wait, buffers) is
    known of a prediction alone.
    """

    experiment: Experiment
    device: Numbers

    @cached_property
    def _layout(self) -> Layout:
        return self.experiment.configuration.layout

    @cached_property
    def sizes(self) -> Numbers:
        """Bytes, by stage."""
        physical = self.experiment.require_physical()
        saved = unit_activations(physical, physical.layers(self._layout)).saved
        return np.bincount(self._layout.stage_of_unit, saved, self._layout.stages).astype(float)

    @cached_property
    def limits(self) -> Numbers:
        """Bytes, by rank."""
        sharding = self.experiment.configuration.communication.sharding
        least = least_memories(self.experiment.require_physical(), self._layout, sharding)
        fixed = [
            each.state + each.weights + each.gradients + each.workspace + each.transient
            for each in least
        ]
        limits: Numbers = (self.device - CONTEXT) / RESERVED - np.array(fixed)
        return limits.clip(min=0.0)

    def excess(self, experiment: Experiment) -> Numbers:
        """As it is predicted."""
        memories = rank_memories(experiment.graph(), experiment.require_physical())
        reserved: Numbers = np.array([each.reserved for each in memories])
        return (reserved - self.device) / RESERVED


def memory_of(experiment: Experiment, limit: Limits, gigabytes: Limits) -> Memory:
    """What is kept by an experiment whose stages are placed, and what may be.

    Without a limit it is the device's memory, with a model, and none without.
    """
    layout = experiment.configuration.layout
    if limit is not None:
        if gigabytes is not None:
            raise InvalidConfiguration(FIELD, "is counted or in gigabytes, not both")
        size = layout.pp / (layout.stages * layout.slices)
        return Counted(np.full(layout.stages, size), _of_ranks(limit, layout.pp))
    if experiment.physical is None:
        if gigabytes is not None:
            raise InvalidConfiguration(FIELD, "in gigabytes needs --model and --cluster")
        return Counted(np.ones(layout.stages), np.full(layout.pp, np.inf))
    if gigabytes is None:
        gigabytes = experiment.require_physical().cluster.device.memory / GIGABYTE
    return Reserved(experiment, _of_ranks(gigabytes, layout.pp) * GIGABYTE)


def _of_ranks(limit: float | Sequence[float], ranks: int) -> Numbers:
    limits = np.atleast_1d(np.array(limit, dtype=float))
    if len(limits) not in (1, ranks):
        raise InvalidConfiguration(FIELD, f"needs 1 number or {ranks}, not {len(limits)}")
    return np.broadcast_to(limits, ranks).copy()

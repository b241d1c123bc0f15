"""Activations that a stage keeps of a micro-batch, and limits of ranks: counted, or in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor
from typing import Protocol

import numpy as np

from bfpp.schedules import InvalidConfiguration, Layout
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.graph.counts import peak_microbatches
from bfpp.sim.costs.units.activations import activations_of_units
from bfpp.sim.experiment.balance import Matrix, Pieces
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.memory.device_memory import least_memories, rank_memories
from bfpp.sim.memory.peak_memory import CONTEXT, RESERVED
from bfpp.traces.timeline.units import GIGABYTE

FIELD = "memory_limit"

Limits = float | Sequence[float] | None
"""None, one for all ranks, or one a rank."""


class Memory(Protocol):
    """By stage and by rank, in whatever unit."""

    @property
    def sizes(self) -> Numbers:
        """Activations that each stage keeps of a micro-batch."""
        ...

    @property
    def limits(self) -> Numbers:
        """The most that each rank may keep."""
        ...

    @property
    def unit(self) -> str:
        """The unit of the limits."""
        ...

    @property
    def step(self) -> float:
        """Granularity of peaks: the least difference of two, exactly or about."""
        ...

    def excess(self, peaks: Numbers) -> Numbers:
        """By rank: how much more than its limit such a peak is, as the limits of a problem are."""
        ...

    def peaks(self, experiment: Experiment) -> Numbers:
        """Peak of each rank in the unit of limits: micro-batches, or gigabytes."""
        ...

    def alone(self, rank: int, size: float) -> str:
        """A rank's peak beside its limit, as a text, in the unit of limits."""
        ...

    def of_any_cut(self, stage: int, alive: Matrix) -> Matrix:
        """The least that a rank keeps whose stage has `alive` micro-batches in flight.

        By the first of the stage's layers and the first one after them.
        """
        ...

    def above(self, peak: float) -> float:
        """The least that a peak can be which is more than this one."""
        ...

    def of(self, experiment: Experiment) -> Memory:
        """The same with other choices of the same stages."""
        ...

    def within(self, peak: float) -> Memory:
        """The same where no rank may keep more than this."""
        ...


@dataclass(frozen=True, eq=False)
class Counted:
    """In micro-batches of a rank's work."""

    sizes: Numbers
    limits: Numbers
    unit = "micro-batches"

    def excess(self, peaks: Numbers) -> Numbers:
        """The plain difference: a graph and the search count alike."""
        more = peaks - self.limits
        more[np.abs(more) < 1e-9] = 0.0  # sums of shares of a micro-batch, in another order
        return more

    @property
    def step(self) -> float:
        """All stages keep equally much."""
        return float(self.sizes[0])

    def peaks(self, experiment: Experiment) -> Numbers:
        """From the graph."""
        peaks: Numbers = peak_microbatches(experiment.graph())
        return peaks

    def alone(self, rank: int, size: float) -> str:
        """Nothing else counts."""
        return f"{size:.4g} of {self.limits[rank]:.4g}"

    def of_any_cut(self, stage: int, alive: Matrix) -> Matrix:
        """The same, whatever its layers are."""
        kept: Matrix = alive * self.sizes[stage]
        return kept

    def above(self, peak: float) -> float:
        """The next whole number of stages' activations."""
        return (floor(peak / self.step + 1e-9) + 1) * self.step

    def of(self, experiment: Experiment) -> Counted:  # noqa: ARG002
        """These limits, which do not depend on the stages."""
        return self

    def within(self, peak: float) -> Counted:
        """With lower limits."""
        return replace(self, limits=np.minimum(self.limits, peak))


@dataclass(frozen=True, eq=False)
class Reserved:
    """Limits in bytes: the room in a device's memory for kept activations.

    Added to those are the training state and buffers, and what the fullest unit needs while it
    runs backward. What an order needs beyond that (halves of backward passes that wait, buffers)
    only a prediction knows.
    """

    experiment: Experiment
    device: Numbers
    unit = "GiB"

    @cached_property
    def _layout(self) -> Layout:
        return self.experiment.configuration.layout

    @cached_property
    def sizes(self) -> Numbers:
        """Bytes, by stage."""
        physical = self.experiment.require_physical()
        saved = activations_of_units(physical, self._layout).saved
        return np.bincount(self._layout.stage_of_unit, saved, self._layout.stages).astype(float)

    @cached_property
    def limits(self) -> Numbers:
        """Bytes, by rank."""
        limits: Numbers = (self.device - CONTEXT) / RESERVED - self._fixed
        return limits.clip(min=0.0)

    @cached_property
    def _fixed(self) -> Numbers:
        """Bytes, by rank, that no order changes."""
        sharding = self.experiment.configuration.communication.sharding
        least = least_memories(self.experiment.require_physical(), self._layout, sharding)
        return np.array(
            [
                each.state + each.weights + each.gradients + each.workspace + each.transient
                for each in least
            ]
        )

    def excess(self, peaks: Numbers) -> Numbers:
        """In allocated bytes."""
        return (peaks * GIGABYTE - self.device) / RESERVED

    @property
    def step(self) -> float:
        """Activations of a micro-batch on the stage that keeps least, of those with layers."""
        return float(self.sizes[self.sizes > 0].min()) * RESERVED / GIGABYTE

    def peaks(self, experiment: Experiment) -> Numbers:
        """As it is predicted."""
        memories = rank_memories(experiment.graph(), experiment.require_physical())
        return np.array([each.reserved_gb for each in memories])

    def alone(self, rank: int, size: float) -> str:
        """As it is reserved."""
        least = RESERVED * (float(self._fixed[rank]) + size) + CONTEXT
        return f"{least / GIGABYTE:.1f} of {self.device[rank] / GIGABYTE:.4g}"

    def of_any_cut(self, stage: int, alive: Matrix) -> Matrix:
        """Without workspaces."""
        sharding = self.experiment.configuration.communication.sharding
        pieces = Pieces(self.experiment.require_physical(), self._layout)
        kept = pieces.memory(stage, sharding, alive)
        return (RESERVED * kept + CONTEXT) / GIGABYTE

    def above(self, peak: float) -> float:
        """Anything is possible."""
        return peak

    def of(self, experiment: Experiment) -> Reserved:
        """On the same devices."""
        return replace(self, experiment=experiment)

    def within(self, peak: float) -> Reserved:
        """With smaller devices."""
        return replace(self, device=np.minimum(self.device, peak * GIGABYTE))


def memory_of(experiment: Experiment, limit: Limits, gigabytes: Limits) -> Memory:
    """Activations and limits of an experiment whose stages are placed.

    Without a limit it is the device's memory, with a model, and none without.
    """
    layout = experiment.configuration.layout
    if limit is not None and gigabytes is not None:
        raise InvalidConfiguration(FIELD, "must be in micro-batches or in gigabytes, not both")
    if limit is not None or experiment.physical is None:
        if gigabytes is not None:
            raise InvalidConfiguration(FIELD, "in gigabytes needs --model and --cluster")
        size = layout.pp / (layout.stages * layout.slices)
        limits = _of_ranks(np.inf if limit is None else limit, layout.pp)
        return Counted(np.full(layout.stages, size), limits)
    if gigabytes is None:
        gigabytes = experiment.require_physical().cluster.device.memory / GIGABYTE
    return Reserved(experiment, _of_ranks(gigabytes, layout.pp) * GIGABYTE)


def _of_ranks(limit: float | Sequence[float], ranks: int) -> Numbers:
    limits = np.atleast_1d(np.array(limit, dtype=float))
    if len(limits) not in (1, ranks):
        raise InvalidConfiguration(FIELD, f"needs 1 number or {ranks}, not {len(limits)}")
    return np.broadcast_to(limits, ranks).copy()

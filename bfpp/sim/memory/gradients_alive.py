"""Gradients that come and go with backward passes, as where PyTorch's FSDP shards all state.

Theory of operation. A unit's whole gradients are there from its backward pass to their reduction.
Those of embeddings and of the output layer, which are in no layer, are reduced at the end of the
backward pass: there they are in the precision of the reduction, where their weights were before.
While the loss runs backward, there are none. The shards that a device keeps exist from the first
reduction to the update: in a step of one micro-batch, they come as activations go.

So they count as transient, unit by unit, and the step with the most decides. Of a layer, its whole
gradients count once, not those that are being reduced while others are made: so this is the least
that any rule of reductions needs, as bounds on memory have to be.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bfpp.schedules import Communication, Layout, Sharding
from bfpp.schedules.columns import Seconds as Numbers
from bfpp.schedules.settings.precision import FULL_PRECISION
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.costs.units.activations import UnitActivations, activations_of_units
from bfpp.sim.engines.caching import of_any_size, once_for_stages


def frees_gradients(physical: PhysicalCosts, communication: Communication) -> bool:
    """True if whole gradients are there in backward passes alone."""
    return communication.reduces_runs and physical.implementation.frees_gradients


def units_alive(
    physical: PhysicalCosts, layout: Layout, communication: Communication
) -> UnitActivations:
    """The activations of each unit, with the gradients of weights that come and go."""
    if not frees_gradients(physical, communication):
        return activations_of_units(physical, layout)
    return _with_gradients(physical, layout, _is_alone(layout))


def shards_that_come(physical: PhysicalCosts, layout: Layout) -> Numbers:
    """For each rank, bytes of gradients that it keeps, and that are not there all the time."""
    if not _is_alone(layout):
        return np.zeros(layout.pp)
    of_layers, of_ends = _shards(physical, layout)
    return layout.sums(of_layers + of_ends)


def _is_alone(layout: Layout) -> bool:
    """True if a step has one micro-batch: before its first reduction, no gradients are kept."""
    return layout.microbatches == 1


@once_for_stages
def _with_gradients(physical: PhysicalCosts, layout: Layout, alone: bool) -> UnitActivations:
    """The same where gradients do; the micro-batch may be `alone` in its step."""
    units, size = activations_of_units(physical, layout), physical.parameter_bytes(Sharding.FULL)
    layers, ends = layer_parameters(physical, layout), end_parameters(physical, layout)
    rank, first = layout.rank_of_unit, layout.holds.argmax(axis=1)
    waiting = layout.holds[rank, -1] * physical.execution.number * ends[-1]
    of_layers = units.of_layers + layout.slices * (size.gradients * layers + waiting)
    backward = np.maximum(of_layers, units.transient)
    at_end = size.gradients * (layout.sums(ends) + layers[first])
    if alone:
        # Units run backward from the last one of a rank to its first one.
        kept, _ = _shards(physical, layout)
        up_to = (layout.holds * kept).cumsum(axis=1)
        backward += layout.slices * (up_to[:, -1, None] - up_to)[rank, np.arange(layout.units)]
        at_end += up_to[:, -1]
    backward[first] = np.maximum(backward[first], layout.slices * at_end)
    return replace(units, gradients=backward - units.transient)


@of_any_size
@once_for_stages
def _shards(physical: PhysicalCosts, layout: Layout) -> tuple[Numbers, Numbers]:
    """For each unit, bytes of gradients that a device keeps: of layers, and of the ends."""
    size = max(physical.execution.precision.bytes, FULL_PRECISION)
    whole = physical.kept(physical.by_stride(layout), layout, Sharding.FULL)
    of_ends = physical.state_share(layout, Sharding.FULL) * end_parameters(physical, layout)
    return size * (whole - of_ends), size * of_ends


@of_any_size
@once_for_stages
def layer_parameters(physical: PhysicalCosts, layout: Layout) -> Numbers:
    """For each unit, the parameters of its layers on a device."""
    whole: Numbers = sum(physical.by_stride(layout).values(), np.zeros(()))
    return whole - end_parameters(physical, layout)


@of_any_size
@once_for_stages
def end_parameters(physical: PhysicalCosts, layout: Layout) -> Numbers:
    """For each unit, the parameters of embeddings and of the output layer."""
    model, ranks = physical.model, physical.tp
    words = model.word_parameters(ranks)
    ends = np.zeros(layout.units)
    ends[0] += model.embedding_parameters(ranks)
    ends[-1] += words * physical.copies_of_words(layout)
    return ends

"""The parameters of a unit by name, which state of the unit has each, and how it is updated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import nn

from bfpp.executor.devices.flat_buffers import UpdateRule, frozen_of, parameters_of, values_of
from bfpp.executor.model.model import named, tie
from bfpp.executor.optimizer.optimizers import decay_of
from bfpp.executor.plan.plan import Plan


class Names(NamedTuple):
    """Parameter names by state: trained here alone, shared with another unit, and frozen.

    Of all, those that are `wide` keep float32 in buffers of 16 bits.
    """

    own: list[str]
    tied: list[str]
    frozen: list[str]
    wide: set[str]


def places_of(
    plan: Plan, layers: Mapping[int, nn.Module]
) -> dict[str, list[tuple[nn.Module, str]]]:
    """The modules that use each parameter of a unit's layers.

    Layers that share a parameter have one from then on. What the last unit shares with the first
    has its name there.
    """
    tie(layers, plan.traced.shared)
    return {plan.tied.get(name, name): uses for name, uses in parameters_of(layers).items()}


def names_of(plan: Plan, places: Mapping[str, Sequence[tuple[nn.Module, str]]]) -> Names:
    """The names of a unit's parameters, once its layers have the precision they compute in."""
    frozen = frozen_of(places)
    tied = {*plan.tied.values()} & places.keys() - frozen
    wide = {name for name, value in values_of(places).items() if value.dtype != plan.dtype}
    own = [name for name in places if name not in frozen | tied]
    return Names(own, sorted(tied), sorted(frozen), wide)


def rules_of(
    plan: Plan, places: Mapping[str, Sequence[tuple[nn.Module, str]]]
) -> dict[str, UpdateRule]:
    """The update of each parameter that is used in these places.

    Muon's matrices are those of two dimensions between the first and the last layer, which are
    embedding and head; embeddings elsewhere are none either.
    """
    options, last = plan.optimization, len(plan.model.layers) - 1
    rules = {}
    for name, uses in places.items():
        module, key = uses[0]
        shape = getattr(module, key).shape
        is_inner = 0 < named(name)[0] < last and not isinstance(module, nn.Embedding)
        is_matrix = options.is_muon and is_inner and len(shape) == 2
        rules[name] = UpdateRule(decay_of(options, name, shape), is_matrix)
    return rules

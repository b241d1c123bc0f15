"""Units made as large as they are trained: one layer at a time, of which a share is kept.

A rank never holds a unit whole before it computes with it. The layout of its training state is
found from layers without values, on the meta device. Then each layer is made on the host, with the
values that it has in a plain model; the rank's share of them is kept, and the others are let go.
What stays of a layer are its modules and buffers: its parameters are views of the buffers that
tasks name.

Layers that somebody else keeps are copied, and may share what is in them: those of a unit are
copied together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bfpp.executor.devices.flat_buffers import Flat, UnitState, flat_of, parameters_of, values_of
from bfpp.executor.devices.uncompiled import uncompiled
from bfpp.executor.model.model import named
from bfpp.executor.model.modules import META
from bfpp.executor.model.parallel.layers import divide
from bfpp.executor.model.parallel.region import Region
from bfpp.executor.plan.parameter_names import names_of, places_of, rules_of
from bfpp.executor.plan.plan import Plan


class UnitLayout(NamedTuple):
    """Layouts of a unit's states: its own weights, those that another unit shares, frozen ones."""

    own: Flat
    tied: Flat | None
    frozen: Flat | None


@uncompiled()
def layout_of(plan: Plan, unit: int, region: Region) -> UnitLayout:
    """The layout of a unit's training state, by the shapes of its parameters."""
    layers = {each: divide(plan.outline(each), region) for each in plan.cuts[unit]}
    for layer in layers.values():
        plan.compute_in(layer)
    places = places_of(plan, layers)
    own, tied, frozen, wide = names_of(plan, places)
    shapes = {name: value.shape for name, value in values_of(places).items()}
    rules = rules_of(plan, places)

    def flat(names: Iterable[str]) -> Flat:
        return flat_of({name: shapes[name] for name in names}, plan.shares, wide, rules)

    return UnitLayout(flat(own), flat(tied) if tied else None, flat(frozen) if frozen else None)


def made_together(plan: Plan, unit: int) -> list[list[int]]:
    """The layers that a unit takes values from, in groups that are made one after another.

    The last unit has those that it shares with the first from layers of the first.
    """
    is_last = unit == len(plan.cuts) - 1
    elsewhere = {named(name)[0] for name in plan.tied.values()} if is_last else set()
    layers = sorted({*plan.cuts[unit]} | elsewhere)  # what layers share is named by the first one
    kept = [each for each in layers if each in plan.traced.kept]
    groups = [kept, *([each] for each in layers if each not in plan.traced.kept)]
    return [group for group in groups if group]


def made_in_turn(plan: Plan, unit: int, region: Region) -> Iterator[dict[int, nn.Module]]:
    """The layers that a unit takes values from, with their values: as few at a time as can be."""
    for group in made_together(plan, unit):
        yield {each: divide(layer, region) for each, layer in plan.build(group).items()}


def take_values(
    layers: Mapping[int, nn.Module], states: Iterable[UnitState], device: torch.device
) -> None:
    """Keep shares of the values of layers; these have none from then on, and buffers go along."""
    places = parameters_of(layers)
    values = values_of(places)
    for state in states:
        state.fill(values)
    for uses in places.values():
        whole = getattr(*uses[0])
        empty = nn.Parameter(torch.empty_like(whole, device=META), whole.requires_grad)
        for module, key in uses:
            module._parameters[key] = empty
    buffers = [
        (module, key, buffer)
        for layer in layers.values()
        for module in layer.modules()
        for key, buffer in module.named_buffers(recurse=False)
    ]
    moved: dict[int, Tensor] = {}
    for module, key, buffer in buffers:
        module._buffers[key] = moved.setdefault(id(buffer), buffer.to(device))

"""Bytes of a plan's units on each rank, before any is made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from torch import Tensor

from bfpp.executor.devices.flat_buffers import flat_of, values_of
from bfpp.executor.devices.uncompiled import uncompiled
from bfpp.executor.memory.rank_memory import counts_of, reduced_in_place, users_of
from bfpp.executor.model.parallel.exchange import ThreadExchange, ThreadShards
from bfpp.executor.model.parallel.layers import divide
from bfpp.executor.model.parallel.region import Region
from bfpp.executor.optimizer.optimizers import moment_bytes
from bfpp.executor.plan.parameter_names import names_of, places_of
from bfpp.executor.plan.plan import Plan
from bfpp.schedules import Operation


class Shares(NamedTuple):
    """Elements of a device's share of a unit's trained weights, and of its frozen ones."""

    trained: int
    frozen: int


@uncompiled()
def shares_of(plan: Plan, unit: int) -> Shares:
    """Sizes of a unit, by the shapes of its parameters."""
    region = Region(ThreadShards(ThreadExchange(plan.tp), 0), plan.sequence_parallel)
    layers = {each: divide(plan.outline(each), region) for each in plan.cuts[unit]}
    for layer in layers.values():
        plan.compute_in(layer)
    places = places_of(plan, layers)
    own, tied, frozen, wide = names_of(plan, places)
    share = partial(_share, plan, values_of(places), wide)
    trained = share(own) + (share(tied) if tied else 0)
    return Shares(trained, share(frozen) if frozen else 0)


def _share(
    plan: Plan, values: Mapping[str, Tensor], wide: Collection[str], names: Iterable[str]
) -> int:
    """Elements of a share of these parameters, in a state of their own."""
    return flat_of({name: values[name].shape for name in names}, plan.shares, wide).share


def resident_bytes(plan: Plan, rank: int) -> dict[str, float]:
    """Bytes that are on a device of a rank all the time: of its state, and in buffers."""
    units = plan.graph.layout.units_of(rank)
    shares = {unit: shares_of(plan, unit) for unit in units}
    number, full = plan.dtype.itemsize, plan.state_dtype.itemsize
    in_place = number == full and not counts_of(plan, Operation.GATHER, rank)
    kept = full + moment_bytes(plan.optimization, plan.state_dtype)
    apart = {*units} - reduced_in_place(plan, rank)
    weights = [
        max(sum(shares[unit]) for unit in users)
        for users in users_of(plan, units, "weight_buffer").values()
        if not in_place
    ]
    gradients = [
        max(shares[unit].trained for unit in users)
        for users in users_of(plan, units, "gradient_buffer").values()
    ]
    return {
        "state": sum(
            (kept + full * (unit in apart)) * shares[unit].trained + full * shares[unit].frozen
            for unit in units
        ),
        "weights": number * plan.shares * sum(weights),
        "gradients": plan.gradient_dtype.itemsize * plan.shares * sum(gradients),
    }

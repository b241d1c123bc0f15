"""How much memory a plan's units will take, known before any is made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from bfpp.executor.flat import flatten, frozen_of, parameters_of, values_of
from bfpp.executor.model import tie
from bfpp.executor.optimizers import moment_bytes
from bfpp.executor.plan import Plan
from bfpp.executor.shards import Meeting, ThreadShards
from bfpp.executor.tensor_parallel import Region, divide
from bfpp.executor.uncompiled import uncompiled
from bfpp.schedules import Operation
from bfpp.schedules.columns import NONE


class UnitSize(NamedTuple):
    """Elements of a unit on a device: in a buffer, and in a share of the state."""

    trained: int
    trained_share: int
    frozen: int
    frozen_share: int


@uncompiled()
def unit_sizes(plan: Plan) -> list[UnitSize]:
    """Those of each unit, by the shapes of its parameters."""
    region = Region(ThreadShards(Meeting(plan.tp), 0), plan.sequence_parallel)
    found = []
    for cut in plan.cuts:
        layers = {each: divide(plan.outline(each), region) for each in cut}
        for layer in layers.values():
            plan.compute_in(layer)
        tie(layers, plan.traced.shared)
        places = {plan.tied.get(name, name): uses for name, uses in parameters_of(layers).items()}
        values, frozen = values_of(places), frozen_of(places)
        wide = {name for name, value in values.items() if value.dtype != plan.dtype}
        tied = {*plan.tied.values()} & places.keys() - frozen
        states = (
            flatten(
                {name: torch.empty_like(values[name], device="meta") for name in names},
                plan.shares,
                torch.device("meta"),
                wide & names,
            )[0]
            if names
            else None
            for names in (values.keys() - frozen - tied, tied, frozen)
        )
        sizes = [(flat.size, flat.share) if flat else (0, 0) for flat in states]
        trained, shared, fixed = sizes
        found.append(UnitSize(trained[0] + shared[0], trained[1] + shared[1], *fixed))
    return found


def resident_bytes(plan: Plan, rank: int) -> dict[str, float]:
    """Bytes that are on a device of a rank all the time: of its state, and in buffers."""
    size = unit_sizes(plan)
    units = [*plan.graph.layout.units_of(rank)]
    number, full = plan.dtype.itemsize, plan.state_dtype.itemsize
    gathers = (plan.graph.operation == Operation.GATHER) & plan.graph.takes_part(rank)
    in_place = number == full and not gathers.any()
    kept = 2 * full + moment_bytes(plan.optimization, plan.state_dtype)
    state = sum(kept * size[unit].trained_share + full * size[unit].frozen_share for unit in units)
    weights = [
        max(size[unit].trained + size[unit].frozen for unit in users)
        for users in _users(plan, "weight_buffer", units)
        if not in_place
    ]
    gradients = [
        max(size[unit].trained for unit in users)
        for users in _users(plan, "gradient_buffer", units)
    ]
    return {
        "state": state,
        "weights": number * sum(weights),
        "gradients": plan.gradient_dtype.itemsize * sum(gradients),
    }


def _users(plan: Plan, column: str, units: Iterable[int]) -> list[list[int]]:
    """For each buffer of a column, the units that take turns in it, in an evaluation too."""
    users: dict[int, list[int]] = {}
    for graph in filter(None, (plan.graph, plan.forward_graph)):
        for unit in units:
            used = getattr(graph, column)[graph.unit == unit]
            for buffer in {*used.tolist()} - {NONE}:
                users.setdefault(buffer, []).append(unit)
    return [*users.values()]

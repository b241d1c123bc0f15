"""Costs of each replica's tasks: an even step's, with the effects of sources one after the other.

- What replicas do together is as slow as its slowest member.
- Replicas that exchange tokens of experts in each layer run as one, the slowest of them.
- Replicas that are alike in all tasks are one. In groups (HSDP), groups are, and then the members
  with the same place in all groups that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import Integers, Seconds
from bfpp.schedules.operations.operations import collectives
from bfpp.schedules.operations.row import Group
from bfpp.sim.engines.cost_model import Costs
from bfpp.sim.unevenness.replicated_step import Effect, ReplicatedStep


class UnevenCosts(NamedTuple):
    """Costs of replicas that differ, in `groups`; and which of them each replica is like."""

    replicas: tuple[Costs, ...]
    groups: int
    of_replica: Integers


def uneven_costs(step: ReplicatedStep, effects: Sequence[Effect]) -> UnevenCosts:
    """The costs of a step with these effects."""
    base, shape = step.costs, step.shape
    seconds, moved = step.with_effects(base.seconds, effects), np.broadcast_to(base.bytes, shape)
    for effect in effects:
        moved = moved * effect.factor
    groups = step.degrees.dp_replicate
    both = [
        _as_slow_as_slowest(step, _in_lockstep(step, each), groups) for each in (seconds, moved)
    ]
    distinct, kept_groups, of_replica = _distinct(both, groups)
    costs = tuple(Costs(both[0][row], both[1][row], base.ports, base.bandwidth) for row in distinct)
    return UnevenCosts(costs, kept_groups, np.repeat(of_replica, step.in_lockstep))


def _in_lockstep(step: ReplicatedStep, values: Seconds) -> Seconds:
    """The largest value of those that run as one, in place of each of them."""
    if step.in_lockstep == 1:
        return np.ascontiguousarray(values)
    together: Seconds = values.reshape(-1, step.in_lockstep, values.shape[1]).max(axis=1)
    return together


def _as_slow_as_slowest(step: ReplicatedStep, values: Seconds, groups: int) -> Seconds:
    """The values, with the largest of each group for what it does together."""
    graph = step.graph
    for operation in collectives(graph.communication):
        tasks = np.flatnonzero(graph.operation == operation)
        group = operation.group(graph.communication)
        own = values[:, tasks].reshape(groups, len(values) // groups, len(tasks))
        axis = {Group.DP_SHARD: 1, Group.DP_REPLICATE: 0}.get(group, (0, 1))
        slowest = np.broadcast_to(own.max(axis=axis, keepdims=True), own.shape)
        if (slowest != own).any():
            values = values.copy()
            values[:, tasks] = slowest.reshape(len(values), -1)
    return values


def _distinct(columns: Sequence[Seconds], groups: int) -> tuple[list[int], int, Integers]:
    """The rows that stand for all that are alike, in how many groups, and that of each row."""
    alike: dict[bytes, int] = {}
    kind = [
        alike.setdefault(b"".join(each[row].tobytes() for each in columns), row)
        for row in range(len(columns[0]))
    ]
    grid = np.array(kind).reshape(groups, -1)
    _, rows, row_of = np.unique(grid, axis=0, return_index=True, return_inverse=True)
    _, places, place_of = np.unique(grid[rows], axis=1, return_index=True, return_inverse=True)
    number = row_of.ravel()[:, np.newaxis] * len(places) + place_of.ravel()
    kept = grid[np.ix_(rows, places)]
    return kept.ravel().tolist(), len(rows), number.ravel().astype(np.int32)

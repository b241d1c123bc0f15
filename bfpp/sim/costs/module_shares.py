"""Shares of passes that a module of layers takes: core attention, or experts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple, replace

import numpy as np

from bfpp.schedules import Layout, Operation
from bfpp.schedules.columns import Seconds
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.sim.costs.model_on_cluster import ModelOnCluster
from bfpp.sim.costs.units.seconds import part_counts, pass_seconds
from bfpp.sim.operators.checkpointing import Checkpointed
from bfpp.sim.operators.operators import Work

IN_PASS = {
    Operation.FORWARD: (0,),
    Operation.BACKWARD: (1, 2),
    Operation.BACKWARD_INPUT: (1,),
    Operation.BACKWARD_WEIGHT: (2,),
}
"""The parts of `PassSeconds` in each operation's pass, by place."""


def module_shares(physical: ModelOnCluster, layout: Layout, modules: Collection[str]) -> Seconds:
    """By operation and unit, the share of a pass that these modules take."""
    whole, without = np.zeros((2, 3, layout.units))
    for part, counts in part_counts(physical, physical.layers(layout)):
        for total, each in ((whole, part), (without, _without(part, modules))):
            total += np.outer(astuple(pass_seconds(physical, each)), counts)
    shares = np.zeros((len(OPERATIONS), layout.units))
    for operation, places in IN_PASS.items():
        all_of_it, rest = (each[list(places)].sum(axis=0) for each in (whole, without))
        shares[operation] = 1 - np.divide(
            rest, all_of_it, out=np.ones_like(rest), where=all_of_it > 0
        )
    return shares


def _without(part: Checkpointed, modules: Collection[str]) -> Checkpointed:
    """The part, some modules of which take no time."""
    operators = [
        replace(each, forward=Work(), backward_input=Work(), backward_weight=Work())
        if each.module in modules
        else each
        for each in part.operators
    ]
    return replace(part, operators=tuple(operators))

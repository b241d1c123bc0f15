"""Where stages are while an order is sought, and the rules that there are for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from bfpp.schedules import InvalidConfiguration, Layout, registered_schedules
from bfpp.schedules.given_orders import GivenOrders
from bfpp.schedules.operations import Operation
from bfpp.sim.experiment import Experiment
from bfpp.sim.synthesis.problem import HALVES, WHOLE, one_of_each

LOOPS = 2
"""Stages of a rank where there may be several and none are asked for."""

PLACEMENTS = ("contiguous", "vee", "looped", "free")
"""One stage a rank; two, down the ranks and up again; several, always down; whichever is best."""


@dataclass(frozen=True)
class Board:
    """An experiment whose stages are placed, but not ordered: its orders are there to be priced."""

    name: str
    experiment: Experiment
    operations: tuple[Operation, ...]

    @property
    def layout(self) -> Layout:
        """Where the stages are."""
        return self.experiment.configuration.layout

    def ordered(self, title: str, orders: GivenOrders) -> Experiment:
        """The experiment in another order."""
        return self.experiment.changed(schedule=GivenOrders(title, orders.ranks, orders.home))

    def rules(self) -> Iterator[Experiment]:
        """Each registered schedule that runs on these stages, with such passes."""
        for rule in registered_schedules().values():
            with suppress(InvalidConfiguration):
                loops = self.layout.loops if rule.looped else None
                experiment = self.experiment.changed(
                    schedule=rule, loops=loops, units_per_stage=self._units(rule.looped)
                )
                if self._has_same_stages(experiment) and self._has_such_passes(experiment):
                    yield experiment

    def _units(self, looped: bool) -> int | None:
        return None if looped else self.experiment.units_per_stage

    def _has_same_stages(self, experiment: Experiment) -> bool:
        return experiment.configuration.layout == self.layout

    def _has_such_passes(self, experiment: Experiment) -> bool:
        if len(self.operations) == len(HALVES):
            return True
        orders = experiment.rule.orders(self.layout)
        return all(np.isin(order["operation"], self.operations).all() for order in orders)


def boards(experiment: Experiment, placement: str, *, split: bool) -> list[Board]:
    """The experiment on the stages of a placement, or of each.

    Stages that compare have the same units: one that is alone on its rank has as many as the
    stages of a rank with several together.
    """
    names = PLACEMENTS[:-1] if placement == PLACEMENTS[-1] else (placement,)
    loops = experiment.loops or LOOPS
    if experiment.loops and placement in ("contiguous", "vee") and loops != _loops(placement, 1):
        raise InvalidConfiguration("loops", f"{placement} has {_loops(placement, 1)} stages a rank")
    found = []
    for name in names:
        stages = _placed(name, experiment.pp, loops)
        units = experiment.units_per_stage
        if units is None and experiment.model is None and len(names) > 1 and name == "contiguous":
            units = LOOPS
        operations = HALVES if split else WHOLE
        layout = Layout(experiment.pp, experiment.microbatches, placement=stages)
        ranks = tuple(tuple(order.tolist()) for order in one_of_each(layout, operations))
        schedule = GivenOrders(name, ranks, layout)
        changed = experiment.changed(schedule=schedule, loops=None, units_per_stage=units)
        found.append(Board(name, changed, operations))
    return found


def _loops(placement: str, loops: int) -> int:
    return {"contiguous": 1, "vee": 2}.get(placement, loops)


def _placed(placement: str, pp: int, loops: int) -> tuple[int, ...]:
    down = tuple(range(pp))
    if placement == "vee":
        return down + down[::-1]
    return down * _loops(placement, loops)

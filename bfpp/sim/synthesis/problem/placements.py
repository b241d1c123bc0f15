"""Placements of stages to synthesise orders for, and the registered schedules that fit them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from bfpp.schedules import InvalidConfiguration, Layout, registered_schedules
from bfpp.schedules.formats.orders_file import GivenOrders
from bfpp.schedules.operations.operations import Operation
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.synthesis.problem.problem import HALVES, WHOLE, one_of_each

LOOPS = 2
"""Stages of a rank where there may be several and none are asked for."""

FREE = "free"

PLACEMENTS = ("contiguous", "vee", "looped", FREE)
"""One stage a rank; two, down the ranks and up again; several, always down; whichever is best."""

STAGES = {"contiguous": 1, "vee": 2}
"""Of a rank, where the placement says how many."""


@dataclass(frozen=True)
class Board:
    """An experiment whose stages are placed, but not ordered: its orders are there to be priced."""

    name: str
    experiment: Experiment
    operations: tuple[Operation, ...]

    @property
    def layout(self) -> Layout:
        """Placement of the stages."""
        return self.experiment.configuration.layout

    def changed(self, experiment: Experiment) -> Board:
        """The same stages with other layers, or other layers recomputed."""
        return replace(self, experiment=experiment)

    def rules(self) -> Iterator[Experiment]:
        """Each registered schedule that runs on these stages, with such passes."""
        loops, units = self.layout.loops, self.experiment.units_per_stage
        unplaced = self.experiment.changed(units_per_stage=None)
        for rule in registered_schedules().values():
            with suppress(InvalidConfiguration):
                own = {"loops": loops} if rule.looped else {"units_per_stage": units}
                experiment = unplaced.changed(schedule=rule, **own)
                has_same_stages = experiment.configuration.layout == self.layout
                if has_same_stages and self._has_such_passes(experiment):
                    experiment.graph()  # refuses micro-batches and queues that it cannot run with
                    yield experiment

    def _has_such_passes(self, experiment: Experiment) -> bool:
        if len(self.operations) == len(HALVES):
            return True
        orders = experiment.rule.orders(self.layout)
        return all(np.isin(order["operation"], self.operations).all() for order in orders)


def boards(experiment: Experiment, placement: str, *, split: bool) -> list[Board]:
    """The experiment on the stages of a placement, or of each.

    Placements that are compared divide a rank alike: where it has fewer stages, these have more
    units. With a model, its layers are divided.
    """
    if placement not in PLACEMENTS:
        reason = f"{placement!r} is not one of {', '.join(PLACEMENTS)}"
        raise InvalidConfiguration("placement", reason)
    if placement != FREE:
        if experiment.loops not in (None, asked := STAGES.get(placement, experiment.loops)):
            raise InvalidConfiguration("loops", f"{placement} has {asked} stages a rank")
        loops = experiment.loops or LOOPS
        return [_board(experiment, placement, loops, experiment.units_per_stage, split)]
    loops = experiment.loops or LOOPS
    if experiment.model is not None:
        return [_board(experiment, name, loops, None, split) for name in PLACEMENTS[:-1]]
    if experiment.units_per_stage is not None:
        raise InvalidConfiguration("units_per_stage", f"{FREE} placements are divided by --loops")
    if loops % STAGES["vee"]:
        raise InvalidConfiguration("loops", f"{loops} units of a rank are no two stages of a V")
    return [
        _board(experiment, name, loops, loops // STAGES.get(name, loops), split)
        for name in PLACEMENTS[:-1]
    ]


def _board(experiment: Experiment, name: str, loops: int, units: int | None, split: bool) -> Board:
    operations = HALVES if split else WHOLE
    down = tuple(range(experiment.pp))
    placement = down + down[::-1] if name == "vee" else down * STAGES.get(name, loops)
    layout = Layout(experiment.pp, experiment.microbatches, placement=placement)
    ranks = tuple(tuple(order.tolist()) for order in one_of_each(layout, operations))
    schedule = GivenOrders(name, ranks, layout)
    changed = experiment.changed(schedule=schedule, loops=None, units_per_stage=units)
    return Board(name, changed, operations)

"""Experiments side by side: the same values for schedules that divide layers in their own ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.values import OPTIONS


def side_by_side(known: Sequence[Experiment], values: Mapping[str, Any]) -> list[Experiment]:
    """The experiments of several schedules of the same model, with these values.

    A stage of a non-looped schedule is given as many units as the looped ones have loops,
    so that a unit costs the same in all of them. Parameters are for the schedules that have
    them; one that none has is refused.
    """
    parameters = {each for experiment in known for each in experiment.rule.parameters}
    experiments = []
    for experiment in known:
        rule = experiment.rule
        own = {
            name: value
            for name, value in values.items()
            if name in OPTIONS or name in rule.parameters or name not in parameters
        }
        loops, units = own.pop("loops", None), own.pop("units_per_stage", None)
        if rule.looped:
            own["loops"] = loops or experiment.loops
        elif units := units or experiment.units_per_stage:
            own["units_per_stage"] = units
        elif loops and experiment.model is None and "model" not in own:
            own["units_per_stage"] = rule.division(loops)[1]
        experiments.append(experiment.changed(**own))
    return experiments

"""A framework's limits, asked of each part of a configuration.

A limit looks at an experiment that has the values which it is about, and the defaults of others,
so that each part of a space is asked about once, not each configuration.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any

from bfpp.schedules import Communication, InvalidConfiguration, Layout, Schedule
from bfpp.schedules.settings.offloading import OFF
from bfpp.schedules.settings.sharding import DERIVED
from bfpp.sim.experiment.experiment import OF_OFFLOAD, Experiment
from bfpp.sim.experiment.values import DEFAULTS
from bfpp.sim.search.problem import ANY_SCHEDULE, FrameworkLimits, Problem
from bfpp.sim.search.space import Pipeline

MICROBATCHES = 2
"""Of an experiment that a limit of communication looks at: with one, nothing is repeated."""


class Launchable:
    """A framework's limits in a search problem; without any, everything is launched.

    Each question is answered by the reason why not, or None.
    """

    def __init__(self, problem: Problem, limits: FrameworkLimits | None) -> None:
        self._problem, self._limits = problem, limits
        self.pipeline = cache(self._of_pipeline)
        self.setting = cache(self._of_setting)
        self.communication = cache(self._of_communication)

    def _of_pipeline(self, pipeline: Pipeline, cut: tuple[int, ...] | None) -> str | None:
        """The reason against a pipeline; nobody may be able to run it."""
        if (limits := self._limits) is None:
            return None
        schedule, *sizes, units = pipeline
        said: dict[str, Any] = dict(zip(Pipeline._fields[1:], sizes, strict=False))
        said |= {"units_per_stage": units} if isinstance(units, int) else {}
        said |= {"cut": ",".join(map(str, cut))} if cut else {}
        try:
            return limits.broken(limits.of_pipeline, self._experiment(schedule, **said))
        except InvalidConfiguration as error:
            return str(error)

    def _of_setting(self, tp: int, cp: int, ep: int, *values: tuple[str, Any]) -> str | None:
        """The reason against groups of these sizes, and values that costs depend on."""
        if (limits := self._limits) is None:
            return None
        experiment = self._experiment(tp=tp, cp=cp, ep=ep, dp=ep, **dict(values))
        return limits.broken(limits.of_setting, experiment)

    def _of_communication(self, cp: int, communication: Communication) -> str | None:
        """The reason against a communication that offloads nothing."""
        if (limits := self._limits) is None:
            return None
        made = limits.as_run(Layout(1, MICROBATCHES, 1), communication)
        said = {each.name: getattr(made, each.name) for each in fields(Communication)}
        said = {name: value for name, value in said.items() if name not in DERIVED}
        groups = MICROBATCHES if made.hybrid else 1
        experiment = self._experiment(
            pp=1, cp=cp, dp=2 * groups, dp_replicate=groups, microbatches=MICROBATCHES, **said
        )
        return limits.broken(limits.of_communication, experiment)

    def offload(self, way: int | str) -> str | None:
        """The reason against offloading activations in this way."""
        if (limits := self._limits) is None or way == OFF:
            return None
        return limits.broken(limits.of_offload, self._problem.experiment(offload=way))

    def _experiment(self, schedule: str | Schedule = ANY_SCHEDULE, **values: Any) -> Experiment:
        """An experiment that offloads nothing: details of that are fixed for those that do."""
        values |= {name: DEFAULTS[name] for name in OF_OFFLOAD} | {"offload": OFF}
        return self._problem.experiment(schedule, **values)

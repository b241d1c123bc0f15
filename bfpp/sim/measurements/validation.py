"""Compare measured training configurations with the predictions of the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from bfpp.schedules import (
    Communication,
    Layout,
    Schedule,
    TaskGraph,
    build_graph,
)
from bfpp.sim.cluster.constants import Constants
from bfpp.sim.costs.physical import PhysicalCosts
from bfpp.sim.engines.engines import simulate
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.experiment.prediction import predict
from bfpp.sim.experiment.uncertainty import Interval, interval
from bfpp.sim.experiment.without_effect import without_effect
from bfpp.traces.timeline.timeline import Timeline

WORK: dict[str, Callable[[PhysicalCosts, Layout], float]] = {
    "tflops_per_gpu": lambda physical, layout: physical.hardware_flops(layout) / 1e12,
    "tokens_per_second_per_gpu": lambda physical, layout: (
        physical.batch(layout) * physical.model.sequence / physical.degrees.devices
    ),
}
"""Work of a step that each throughput is a rate of."""

TIMES = (*WORK, "step_seconds")

MEMORY = ("memory_gb", "memory_min_gb", "memory_largest_gb", "memory_reserved_gb")
MEASURED = (*TIMES, *MEMORY)
ANY_MEMORY = "memory"
"""The one of these that a row has; the first where it has none."""

NO_PIPELINE = "no-pipeline"


@dataclass(frozen=True)
class Measurement:
    """One row of a table.

    `schedule` is the table's word for what `experiment` has; `measured` holds those values
    of `MEASURED` that the row gives.
    """

    experiment: Experiment
    schedule: str
    measured: Mapping[str, float]
    table: str = ""

    @property
    def group(self) -> tuple[str, str]:
        """The table and the method: rows that were measured alike."""
        return self.table, self.schedule

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.experiment.configuration.batch

    @property
    def step_seconds(self) -> float:
        """The measured step time."""
        (name,) = (name for name in TIMES if name in self.measured)
        return self._work(name) / self.measured[name] if name in WORK else self.measured[name]

    @property
    def tflops_per_gpu(self) -> float:
        """The measured throughput in 1e12 hardware FLOP/s of a GPU, as the paper counts it."""
        if "tflops_per_gpu" in self.measured:
            return self.measured["tflops_per_gpu"]
        return self._work("tflops_per_gpu") / self.step_seconds

    def _work(self, name: str) -> float:
        experiment = self.experiment
        return WORK[name](experiment.require_physical(), experiment.configuration.layout)

    @property
    def record(self) -> dict[str, Any]:
        """The configuration, by the names of the columns."""
        experiment = self.experiment
        return {
            "table": self.table,
            **experiment.record,
            "schedule": self.schedule,
            "sharding": str(experiment.sharding),
            "batch": self.batch,
            "pp": experiment.pp,
            "tp": experiment.tp,
            "dp": experiment.dp,
            "microbatch_size": experiment.microbatch_size,
            "microbatches": experiment.microbatches,
            "loops": 1 if self.schedule == NO_PIPELINE else experiment.loops or 1,
        }


@dataclass(frozen=True)
class Case:
    """A measurement and the graph of its training step."""

    measured: Measurement
    graph: TaskGraph

    def physical(self, constants: Constants | None = None) -> PhysicalCosts:
        """The cost model of the configuration, with these constants instead of its own, if any."""
        experiment = self.measured.experiment
        if constants is not None:
            experiment = experiment.changed(constants=constants)
        return experiment.require_physical()

    def throughput(self, constants: Constants) -> float:
        """The predicted throughput alone, in 1e12 FLOP/s per GPU."""
        physical = self.physical(constants)
        step_time = simulate(self.graph, physical).step_time
        return physical.hardware_flops(self.graph.layout) / step_time / 1e12

    def compare(self, constants: Constants | None = None) -> Comparison:
        """The measurement and its prediction, with these constants instead of its own, if any."""
        experiment = self.measured.experiment
        physical = self.physical(constants) if experiment.profile is None else None
        return Comparison(
            self.measured, simulate(self.graph, physical or experiment.costs), physical
        )


def case_of(measured: Measurement) -> Case:
    """The measurement and its graph; raises `InvalidConfiguration` where it cannot be trained."""
    experiment = measured.experiment
    experiment.require_even("bfpp validate")
    configuration = experiment.configuration
    graph = _graph(configuration.schedule, configuration.layout, configuration.communication)
    if (physical := experiment.physical) is not None:
        physical.layers(configuration.layout)
    else:
        experiment.costs.costs(graph)
    return Case(measured, graph)


@lru_cache(maxsize=256)
def _graph(schedule: Schedule, layout: Layout, communication: Communication) -> TaskGraph:
    """A graph, built once for all configurations that differ in their costs only."""
    return build_graph(schedule, layout, communication)


@dataclass(frozen=True)
class Comparison:
    """A measurement and its prediction; errors in per cent of the measurement.

    There is only the step time to compare, without an interval, if costs are not `physical`.
    """

    measured: Measurement
    timeline: Timeline
    physical: PhysicalCosts | None

    @cached_property
    def predicted(self) -> Mapping[str, Any]:
        """The step time, and the physical numbers of the prediction."""
        step_seconds = {"step_seconds": self.timeline.step_time}
        return (
            {**predict(self.timeline, self.physical), **step_seconds}
            if self.physical
            else step_seconds
        )

    @cached_property
    def interval(self) -> Interval | None:
        """Interval of 80 % of measured step times."""
        return interval(self.timeline, self.physical) if self.physical else None

    def name_of(self, value: str) -> str:
        """The name of a value in this row: of any memory, that of the one which was measured."""
        if value != ANY_MEMORY:
            return value
        return next((each for each in MEMORY if each in self.measured.measured), MEMORY[0])

    def measured_value(self, name: str) -> float | None:
        """The measured value, if there is one."""
        if name == "step_seconds":
            return self.measured.step_seconds
        if name == "tflops_per_gpu" and self.physical:
            return self.measured.tflops_per_gpu
        return self.measured.measured.get(name)

    def error(self, name: str) -> float:
        """Error of the prediction, in per cent; NaN where nothing was measured."""
        name = self.name_of(name)
        measured = self.measured_value(name)
        return 100 * (float(self.predicted[name]) / measured - 1) if measured else math.nan

    @property
    def error_step_time(self) -> float:
        """Error of the predicted step time, in per cent; positive if too slow."""
        return self.error("step_seconds")

    @property
    def record(self) -> dict[str, object]:
        """The configuration, the measurement, and the prediction with its errors."""
        values = {name: self.measured_value(name) for name in ("tflops_per_gpu", *MEMORY)}
        measured = {name: value for name, value in values.items() if value is not None}
        bounds = self.interval
        unused = without_effect(self.measured.experiment)
        return {
            **self.measured.record,
            **({"without_effect": unused} if unused else {}),
            "measured": {**measured, **self.measured.measured},
            "prediction": {
                "step_seconds": self.timeline.step_time,
                **({"step_time_low": bounds.low, "step_time_high": bounds.high} if bounds else {}),
                **{name: self.predicted[name] for name in values if self.physical},
            },
            "error": {name: self.error(name) for name in measured},
            "error_step_time": self.error_step_time,
        }


def compare(measured: Measurement, constants: Constants | None = None) -> Comparison:
    """Predict one row, with these constants instead of its own, if any are given."""
    return case_of(measured).compare(constants)


def coverage(comparisons: Sequence[Comparison]) -> float | None:
    """The share of measured step times inside their intervals; None if there are no intervals.

    80 % are to be expected.
    """
    inside = [each.measured.step_seconds in each.interval for each in comparisons if each.interval]
    return float(np.mean(inside)) if inside else None


def mean_absolute_error(comparisons: Sequence[Comparison], name: str) -> float | None:
    """The mean absolute error of a column, in per cent; None if no row has it."""
    errors = np.abs([each.error(name) for each in comparisons])
    known = errors[~np.isnan(errors)]
    return float(known.mean()) if len(known) else None

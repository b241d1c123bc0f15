"""Measured training configurations, and what the simulator predicts for them.

A table is a CSV file with one configuration a row. Its columns are values of an
`Experiment` (`model`, `cluster`, `schedule`, `pp`, `sharding`, ...), what was measured
(`MEASURED`: one of the times at least), and if need be `table`, where a row comes from,
and `batch`, its samples. A row with the `profile` of a machine has no model and no cluster,
and gives `step_seconds`. A row without a pipeline has the schedule `no-pipeline`: one rank,
whose gradients accumulate breadth-first where its weights are fully sharded, else depth-first.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bfpp.schedules import (
    Communication,
    InvalidConfiguration,
    InvalidInput,
    Layout,
    Schedule,
    Sharding,
    TaskGraph,
    registered_schedules,
)
from bfpp.schedules.cut import default_division
from bfpp.schedules.invalid import did_you_mean
from bfpp.schedules.reading import read_file
from bfpp.sim.compiled_lowering import build_graph
from bfpp.sim.constants import Constants
from bfpp.sim.engines import simulate
from bfpp.sim.experiment import Experiment, experiment_of
from bfpp.sim.experiment_values import ALIASES, OPTIONS
from bfpp.sim.numbers import is_count, is_usable, real, whole
from bfpp.sim.physical import PhysicalCosts
from bfpp.sim.prediction import predict
from bfpp.sim.profile import load_profile
from bfpp.sim.uncertainty import Interval, interval
from bfpp.traces.timeline import Timeline

WORK: dict[str, Callable[[PhysicalCosts, Layout], float]] = {
    "tflops_per_gpu": lambda physical, layout: physical.hardware_flops(layout) / 1e12,
    "tokens_per_second_per_gpu": lambda physical, layout: (
        physical.batch(layout) * physical.model.sequence / physical.degrees.devices
    ),
}
"""What a throughput is a rate of, in a step."""

TIMES = (*WORK, "step_seconds")

MEMORY = ("memory_gb", "memory_min_gb", "memory_largest_gb")
MEASURED = (*TIMES, *MEMORY)
REQUIRED = ("model", "cluster", "schedule")
FURTHER = ("table", "batch")

COLUMNS_IN_WORDS = (
    f"Columns of TABLE.csv: {', '.join(REQUIRED)}; one of what was measured: tflops_per_gpu (of "
    "the hardware, as the paper counts them), tokens_per_second_per_gpu, step_seconds; if it was "
    f"measured, in GB: {', '.join(MEMORY)}; table (where a row is from), batch (samples); and any "
    f"value of an experiment by its option's name: {', '.join(OPTIONS)}. A row without a pipeline "
    "has the schedule no-pipeline. With a profile, rows name no model and no cluster, and give "
    "step_seconds. Other columns are refused."
)
"""What a person needs to write a table."""

ROW_DEFAULTS = {"pp": "1", "loops": "1"}
"""What a row means that does not say it, where an experiment by itself would mean another."""

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
        software = {"implementation": experiment.implementation or "paper"}
        return {
            "table": self.table,
            **experiment.record,
            "schedule": self.schedule,
            **(software if experiment.profile is None else {}),
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

    def physical(self, constants: Constants) -> PhysicalCosts:
        """The cost model of the configuration, with these constants."""
        return self.measured.experiment.changed(constants=constants).require_physical()

    def throughput(self, constants: Constants) -> float:
        """The predicted throughput alone, in 1e12 FLOP/s per GPU."""
        physical = self.physical(constants)
        step_time = simulate(self.graph, physical).step_time
        return physical.hardware_flops(self.graph.layout) / step_time / 1e12

    def compare(self, constants: Constants) -> Comparison:
        """The measurement and its prediction."""
        experiment = self.measured.experiment
        physical = self.physical(constants) if experiment.profile is None else None
        return Comparison(
            self.measured, simulate(self.graph, physical or experiment.costs), physical
        )


def read_measurements(path: Path, **common: str) -> list[Measurement]:
    """The rows of a table; `common` are cells that all rows have, such as a `profile`.

    Raises `InvalidInput` with the line and the column at fault.
    """
    try:
        text = io.StringIO(read_file(path).decode(), newline="")
        reader = csv.DictReader(text, strict=True)
        _require_columns([*(reader.fieldnames or ()), *common], path)
        rows = [
            _measurement({**row, **common}, f"{path}: line {reader.line_num}") for row in reader
        ]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: is not CSV: {error}") from None
    if not rows:
        raise InvalidInput(f"{path}: has no rows")
    return rows


def _require_columns(names: Sequence[str], path: Path) -> None:
    if missing := [name for name in _required(names) if name not in names]:
        raise InvalidInput(f"{path}: the column {missing[0]!r} is missing")
    if not any(name in names for name in TIMES):
        raise InvalidInput(f"{path}: there is none of the columns {', '.join(TIMES)}")
    parameters = {name for each in registered_schedules().values() for name in each.parameters}
    known = {*OPTIONS, *ALIASES, *MEASURED, *REQUIRED, *FURTHER, *parameters}
    for name in names:
        if name not in known:
            raise InvalidInput(
                f"{path}: the column {name!r} is unknown{did_you_mean(str(name), known)}"
            )


def _required(names: Collection[str]) -> Sequence[str]:
    return ("schedule",) if "profile" in names else REQUIRED


def _measurement(row: Mapping[str, str | None], where: str) -> Measurement:
    if None in row:
        raise InvalidInput(f"{where}: has more cells than there are columns")
    given = {name: text for name, text in row.items() if text}
    for name in _required(given):
        if name not in given:
            raise InvalidInput(f"{where}: {name} is missing")
    measured = {}
    for name in MEASURED:
        if name in given:
            measured[name] = real(text := given.pop(name).strip())
            if not is_usable(measured[name], zero=False):
                raise InvalidInput(f"{where}: {name} must be a positive number, not {text!r}")
    if len(times := [name for name in TIMES if name in measured]) != 1:
        which = " and ".join(times) or "none of them"
        raise InvalidInput(f"{where}: must give one of {', '.join(TIMES)}, not {which}")
    table, batch = given.pop("table", ""), given.pop("batch", None)
    schedule = given["schedule"]
    try:
        values = {**ROW_DEFAULTS, **_measured_with(given), **given}
        if batch is not None:
            values["microbatches"] = _microbatches(values, batch)
        if "profile" in given and [*measured] != ["step_seconds"]:
            raise InvalidConfiguration("profile", "predicts step_seconds alone")
        found = Measurement(_experiment(values), schedule, measured, table)
        case_of(found)
    except InvalidConfiguration as error:
        raise InvalidInput(f"{where}: {error}") from None
    return found


def _measured_with(given: Mapping[str, str]) -> dict[str, str]:
    """What a row of a profile means that does not say it: what the profile was measured with."""
    if "profile" not in given:
        return {}
    costs = load_profile(given["profile"])
    sizes = {"pp": costs.ranks, "dp": costs.replicas, "microbatch_size": costs.microbatch_size}
    return {name: str(size) for name, size in sizes.items()}


def _microbatches(values: Mapping[str, str], batch: str) -> str:
    """The micro-batches of a row that gives its batch; raises where they disagree."""
    sizes = {
        name: whole(values.get(name, "1").strip()) or 0
        for name in ("dp", "microbatch_size", "microbatches")
    }
    total = whole(batch.strip())
    if total is None or not is_count(total):
        raise InvalidConfiguration("batch", f"must be a positive whole number, not {batch!r}")
    samples = sizes["dp"] * sizes["microbatch_size"]
    if "microbatches" not in values and samples and total % samples == 0:
        return str(total // samples)
    if samples * sizes["microbatches"] != total:
        raise InvalidConfiguration(
            "batch",
            f"is {total}, but dp x microbatch_size x microbatches is "
            f"{samples * sizes['microbatches']}",
        )
    return values["microbatches"]


def _experiment(values: Mapping[str, str]) -> Experiment:
    """The experiment of a row.

    The paper's tables do not print how gradients accumulate on one rank. Fully sharded,
    depth-first would gather every layer for every micro-batch, which the paper "excluded".
    Unsharded, the one row that accumulates (table E.3, batch 512) has the memory of one
    micro-batch.
    """
    name = values["schedule"]
    if name == NO_PIPELINE:
        if values["pp"].strip() != "1":
            raise InvalidConfiguration("pp", f"must be 1 without a pipeline, not {values['pp']}")
        fully_sharded = Sharding(values.get("sharding", Sharding.NONE)) is Sharding.FULL
        name = "breadth-first" if fully_sharded else "1f1b"
    experiment = experiment_of({**values, "schedule": name})
    if experiment.rule.looped and experiment.pp == 1 and experiment.profile is None:
        loops, _ = default_division(
            experiment.rule, experiment.transformer.layers, 1, experiment.loops or 1
        )
        return experiment.changed(loops=loops)
    return experiment


def case_of(measured: Measurement) -> Case:
    """The measurement and its graph; raises `InvalidConfiguration` where it cannot be trained."""
    experiment = measured.experiment
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
    """A measurement and its prediction; errors in per cent of what was measured.

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
        """Where 80 % of measured step times are expected."""
        return interval(self.timeline, self.physical) if self.physical else None

    def measured_value(self, name: str) -> float | None:
        """What was measured, if it was."""
        if name == "step_seconds":
            return self.measured.step_seconds
        if name == "tflops_per_gpu" and self.physical:
            return self.measured.tflops_per_gpu
        return self.measured.measured.get(name)

    def error(self, name: str) -> float:
        """How much larger the prediction is, in per cent; NaN where nothing was measured."""
        measured = self.measured_value(name)
        return 100 * (float(self.predicted[name]) / measured - 1) if measured else math.nan

    @property
    def error_step_time(self) -> float:
        """How much longer the predicted step takes, in per cent."""
        return self.error("step_seconds")

    @property
    def record(self) -> dict[str, object]:
        """The configuration, what was measured, and the prediction with its errors."""
        values = {name: self.measured_value(name) for name in ("tflops_per_gpu", *MEMORY)}
        measured = {name: value for name, value in values.items() if value is not None}
        bounds = self.interval
        return {
            **self.measured.record,
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
    """Predict one row."""
    return case_of(measured).compare(constants or Constants())


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

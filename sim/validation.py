"""Measured training configurations, and what the simulator predicts for them.

A table is a CSV file with one configuration a row and the columns of `COLUMNS`:
which model, cluster and implementation, how the training was divided, and the
measured throughput (1e12 flop/s per GPU) and memory (2^30 bytes). A row without
a pipeline has the schedule `no-pipeline`: one rank, whose gradients accumulate
breadth-first where its weights are fully sharded, else depth-first.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bfpp.schedules import (
    InvalidConfiguration,
    InvalidInput,
    Layout,
    Sharding,
    TaskGraph,
    build_graph,
    find_schedule,
)
from bfpp.schedules.reading import read_file
from bfpp.sim.cluster import load_cluster
from bfpp.sim.engines import simulate
from bfpp.sim.implementation import IMPLEMENTATIONS, find_implementation, with_fitted
from bfpp.sim.model import hardware_flops, load_model
from bfpp.sim.numbers import MOST_DEVICES, MOST_PASSES, MOST_RANKS, is_count, is_usable, real, whole
from bfpp.sim.physical import PhysicalCosts, default_stages_per_rank
from bfpp.sim.prediction import Prediction, predict
from bfpp.sim.preset_files import Table, fitted_settings

NAMES = ("table", "model", "cluster", "implementation", "schedule", "sharding")
COUNTS = ("batch", "pp", "tp", "dp", "microbatch_size", "microbatches", "loops")
MEASURED = ("tflops_per_gpu", "memory_gb", "memory_min_gb")
COLUMNS = (*NAMES, *COUNTS, *MEASURED)

NO_PIPELINE = "no-pipeline"


@dataclass(frozen=True)
class Measurement:
    """One row of a table."""

    table: str
    model: str
    cluster: str
    implementation: str
    schedule: str
    sharding: str
    batch: int
    pp: int
    tp: int
    dp: int
    microbatch_size: int
    microbatches: int
    loops: int
    tflops_per_gpu: float
    memory_gb: float
    memory_min_gb: float

    @property
    def group(self) -> tuple[str, str]:
        """The table and the method: rows that were measured alike."""
        return self.table, self.schedule

    @property
    def schedule_name(self) -> str:
        """The schedule by its name here.

        The paper's tables do not print how gradients accumulate on one rank.
        Fully sharded, depth-first would gather every layer for every
        micro-batch, which the paper "excluded". Unsharded, the one row that
        accumulates (table E.3, batch 512) has the memory of one micro-batch.
        """
        if self.schedule != NO_PIPELINE:
            return self.schedule
        return "breadth-first" if self.sharding == Sharding.FULL else "1f1b"


@dataclass(frozen=True)
class Profile:
    """Fitted constants by cluster and by implementation; the shipped ones by default."""

    clusters: Mapping[str, Table] = field(default_factory=lambda: fitted_settings("clusters"))
    implementations: Mapping[str, Table] = field(
        default_factory=lambda: fitted_settings("implementations")
    )


@dataclass(frozen=True)
class Case:
    """A measurement and the graph of its training step."""

    measured: Measurement
    graph: TaskGraph

    def physical(self, profile: Profile) -> PhysicalCosts:
        """The cost model of the configuration, with these constants."""
        row = self.measured
        return PhysicalCosts(
            model=load_model(row.model),
            cluster=load_cluster(row.cluster, profile.clusters),
            tensor_parallel=row.tp,
            data_parallel=row.dp,
            microbatch_size=row.microbatch_size,
            implementation=with_fitted(profile.implementations)[row.implementation],
        )

    def throughput(self, profile: Profile) -> float:
        """The predicted throughput alone, in 1e12 flop/s per GPU."""
        physical, row = self.physical(profile), self.measured
        step_time = simulate(self.graph, physical).step_time
        flops = hardware_flops(physical.model, row.batch) / (row.pp * row.tp * row.dp)
        return flops / step_time / 1e12

    def predict(self, profile: Profile) -> Prediction:
        """The prediction, as `bfpp.sim.prediction.predict` gives it."""
        physical = self.physical(profile)
        return predict(simulate(self.graph, physical), physical)


def read_measurements(path: Path) -> list[Measurement]:
    """The rows of a table; raises `InvalidInput` with the line and the column at fault."""
    try:
        text = io.StringIO(read_file(path).decode(), newline="")
        reader = csv.DictReader(text, strict=True)
        if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
            raise InvalidInput(f"{path}: the column {missing[0]!r} is missing")
        rows = [_measurement(row, f"{path}: line {reader.line_num}") for row in reader]
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: is not CSV: {error}") from None
    if not rows:
        raise InvalidInput(f"{path}: has no rows")
    return rows


def _measurement(row: Mapping[str, str | None], where: str) -> Measurement:
    def value(name: str) -> str:
        text = row[name]
        if not text:
            raise InvalidInput(f"{where}: {name} is missing")
        return text

    def number(name: str, kind: type[int] | type[float]) -> float:
        text = value(name)
        result = (whole(text.strip()) or 0) if kind is int else real(text.strip())
        if not (is_count(result) if kind is int else is_usable(result, zero=False)):
            what = "whole number" if kind is int else "number"
            raise InvalidInput(f"{where}: {name} must be a positive {what}, not {text!r}")
        return result

    fields: dict[str, Any] = {name: value(name) for name in NAMES}
    fields |= {name: int(number(name, int)) for name in COUNTS}
    fields |= {name: number(name, float) for name in MEASURED}
    measured = Measurement(**fields)
    samples = measured.dp * measured.microbatch_size * measured.microbatches
    if samples != measured.batch:
        raise InvalidInput(
            f"{where}: batch is {measured.batch}, but dp x microbatch_size x microbatches "
            f"is {samples}"
        )
    try:
        case_of(measured)
    except InvalidConfiguration as error:
        raise InvalidInput(f"{where}: {error}") from None
    return measured


def case_of(measured: Measurement) -> Case:
    """The measurement and its graph; raises `InvalidConfiguration` where it cannot be trained."""
    model = load_model(measured.model)
    implementation = find_implementation(measured.implementation)
    name, ranks = measured.schedule_name, measured.pp
    if measured.schedule == NO_PIPELINE and ranks != 1:
        raise InvalidConfiguration("pp", f"must be 1 without a pipeline, not {ranks}")
    if measured.sharding not in list(Sharding):
        known = ", ".join(Sharding)
        raise InvalidConfiguration("sharding", f"{measured.sharding!r} is not one of {known}")
    stages = default_stages_per_rank(name, model, ranks, measured.loops)
    if (passes := ranks * stages * measured.microbatches) > MOST_PASSES or ranks > MOST_RANKS:
        raise InvalidConfiguration(
            "pp", f"{passes:,} passes on {ranks:,} ranks are more than can be simulated"
        )
    if (devices := ranks * measured.tp * measured.dp) > MOST_DEVICES:
        raise InvalidConfiguration("dp", f"{devices:,} devices are more than can be simulated")
    layout = Layout(ranks, measured.microbatches, stages, find_schedule(name).placement)
    case = Case(
        measured,
        _graph(name, layout, implementation.name, Sharding(measured.sharding)),
    )
    case.physical(Profile()).layers_per_stage(layout)
    return case


@lru_cache(maxsize=256)
def _graph(name: str, layout: Layout, implementation: str, sharding: Sharding) -> TaskGraph:
    """A graph, built once for all configurations that differ in their costs only."""
    return build_graph(name, layout, IMPLEMENTATIONS[implementation].communication(sharding))


@dataclass(frozen=True)
class Comparison:
    """A measurement beside its prediction; errors in per cent of what was measured."""

    measured: Measurement
    predicted: Mapping[str, Any]

    def error(self, name: str) -> float:
        """How much larger the prediction is, in per cent."""
        return 100 * (float(self.predicted[name]) / float(getattr(self.measured, name)) - 1)

    @property
    def record(self) -> dict[str, object]:
        """The configuration, what was measured, and the prediction with its errors."""
        row = vars(self.measured)
        return {
            **{name: row[name] for name in (*NAMES, *COUNTS)},
            "measured": {name: row[name] for name in MEASURED},
            "prediction": {name: self.predicted[name] for name in MEASURED},
            "error": {name: self.error(name) for name in MEASURED},
        }


def compare(measured: Measurement, profile: Profile | None = None) -> Comparison:
    """Predict one row."""
    return Comparison(measured, case_of(measured).predict(profile or Profile()))


def mean_absolute_error(comparisons: Sequence[Comparison], name: str) -> float:
    """The mean absolute error of a column, in per cent."""
    return float(np.mean([abs(each.error(name)) for each in comparisons]))

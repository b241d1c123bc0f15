"""Read tables of measured training configurations.

A table is a CSV file with one configuration a row. Its columns are values of an
`Experiment` (`model`, `cluster`, `schedule`, `pp`, `sharding`, ...), measured values
(`MEASURED`: one of the times at least), and if need be `table`, the source of a row,
and `batch`, its samples. A row with the `profile` of a machine has no model and no cluster,
and gives `step_seconds`. A row without a pipeline has the schedule `no-pipeline`: one rank,
whose gradients accumulate breadth-first where its weights are fully sharded, else depth-first.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from bfpp.schedules import InvalidConfiguration, InvalidInput, Sharding, registered_schedules
from bfpp.schedules.errors import did_you_mean
from bfpp.schedules.formats.python_file import require_trust
from bfpp.schedules.orders.division import default_division
from bfpp.schedules.reading import read_file
from bfpp.sim.cluster.software_profiles import BEFORE
from bfpp.sim.costs.measured.profile import load_profile
from bfpp.sim.experiment.experiment import Experiment, experiment_of
from bfpp.sim.experiment.values import ALIASES, OPTIONS
from bfpp.sim.measurements.validation import (
    MEASURED,
    MEMORY,
    NO_PIPELINE,
    TIMES,
    Measurement,
    case_of,
)
from bfpp.sim.presets.numbers import is_count, is_usable, real, whole

REQUIRED = ("model", "cluster", "schedule")
FURTHER = ("table", "batch")


COLUMNS_IN_WORDS = (
    f"Columns of TABLE.csv: {', '.join(REQUIRED)}; one of what was measured: tflops_per_gpu (of "
    "the hardware, as the paper counts them), tokens_per_second_per_gpu, step_seconds; if it was "
    f"measured, in GiB: {', '.join(MEMORY)}; table (where a row is from), batch (samples); and any "
    f"value of an experiment by its option's name: {', '.join(OPTIONS)}. A row without a pipeline "
    "has the schedule no-pipeline. With a profile, rows name no model and no cluster, and give "
    "step_seconds. Other columns are refused."
)
"""Help text on the columns of a table."""

ROW_DEFAULTS = {"pp": "1", "loops": "1"}
"""Defaults of a row that differ from those of an experiment."""

SOFTWARE = {"implementation": BEFORE}
"""Default implementation of a row with a model, as in experiment files."""


def read_measurements(path: Path, *, trust: bool = False, **common: str) -> list[Measurement]:
    """The rows of a table; `common` are cells that all rows have, such as a `profile`.

    No row may give these itself. Rows name schedules in Python files only with `trust`.
    Raises `InvalidInput` with the line and the column at fault.
    """
    try:
        text = io.StringIO(read_file(path).decode(), newline="")
        reader = csv.DictReader(text, strict=True)
        _require_columns([*(reader.fieldnames or ()), *common], path)
        rows = []
        for row in reader:
            where = f"{path}: line {reader.line_num}"
            require_trust(where, row.get("schedule"), trust=trust)
            rows.append(_measurement(row, common, where))
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


def _measurement(
    row: Mapping[str, str | None], common: Mapping[str, str], where: str
) -> Measurement:
    if None in row:
        raise InvalidInput(f"{where}: has more cells than there are columns")
    given = {name: text for name, text in row.items() if text}
    for name in common:
        if name in given:
            raise InvalidInput(f"{where}: {name} is given here and by --{name}: one of them")
    given |= common
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
        usual = _measured_with(given) if "profile" in given else SOFTWARE
        values = {**ROW_DEFAULTS, **usual, **given}
        if batch is not None:
            values["microbatches"] = _microbatches(values, batch)
        if "profile" in given and [*measured] != ["step_seconds"]:
            raise InvalidConfiguration("profile", "predicts step_seconds alone")
        measurement = Measurement(_experiment(values), schedule, measured, table)
        case_of(measurement)
    except InvalidConfiguration as error:
        raise InvalidInput(f"{where}: {error}") from None
    return measurement


def _measured_with(given: Mapping[str, str]) -> dict[str, str]:
    """Defaults of a row with a profile: the sizes that the profile was measured with."""
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

"""The table of a study: a row for each measured cell, its values as text and its times in seconds.

It says all that figures need without the study's file, so that it can be drawn on its own.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bfpp.api.study.intervals import MeanInterval
from bfpp.api.study.results import NETWORK
from bfpp.api.study.study import BACKEND, SCHEDULE, StudyCell, session_of
from bfpp.api.study.study_file import cell_experiment
from bfpp.schedules import InvalidConfiguration, InvalidInput
from bfpp.schedules.formats.python_file import require_trust
from bfpp.schedules.reading import read_file
from bfpp.sim.experiment.experiment import Experiment
from bfpp.sim.measurements.measured_tables import read_measurements
from bfpp.sim.measurements.validation import Measurement, case_of
from bfpp.sim.presets.numbers import is_usable, real, whole

TABLE = "cells.csv"
NUMBERS = ("repetitions", "measured", "measured_low", "measured_high", "predicted", "error")
"""Columns behind those of a cell's values."""


@dataclass(frozen=True)
class TableRow:
    """A cell: the values that its row gives, the experiment that they are, and its step times."""

    network: str
    values: Mapping[str, str]
    experiment: Experiment
    measured: MeanInterval
    predicted: float


def read_table(path: Path, *, trust: bool = False) -> list[TableRow]:
    """The rows of a study's table, of the file or of the folder that holds it.

    Rows name schedules in Python files only with `trust`. Raises `InvalidInput` with the line at
    fault.
    """
    file = path / TABLE if path.is_dir() else path
    try:
        reader = csv.DictReader(io.StringIO(read_file(file).decode(), newline=""), strict=True)
        names = reader.fieldnames or ()
        if missing := [name for name in (NETWORK, SCHEDULE, *NUMBERS) if name not in names]:
            raise InvalidInput(f"{file}: is no table of a study: {missing[0]!r} is missing")
        rows = []
        for given in reader:
            where = f"{file}: line {reader.line_num}"
            require_trust(where, given[SCHEDULE], trust=trust)
            rows.append(_row(given, where))
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file}: is not CSV: {error}") from None
    if not rows:
        raise InvalidInput(f"{file}: has no rows")
    return rows


def read_rows(path: Path, *, trust: bool = False, **common: str) -> list[Measurement]:
    """The measurements of a table; of a study, where it is the folder of one or its table."""
    read = read_cells if path.is_dir() or path.name == TABLE else read_measurements
    return read(path, trust=trust, **common)


def read_cells(path: Path, *, trust: bool = False, **common: str) -> list[Measurement]:
    """The cells as measurements, each with the profile that the study measured on its network.

    `common` may hold another `profile` for all of them, and nothing else.
    """
    folder = path if path.is_dir() else path.parent
    rows = []
    for row in read_table(path, trust=trust):
        own = {"profile": str(folder / session_of(row.network, row.experiment).profile)}
        try:
            posted = StudyCell(row.network, row.values, row.experiment).predicted
            experiment = posted.changed(**own | common)
            measured = {"step_seconds": row.measured.mean}
            place = " ".join((row.network, *_runtime(row)))
            rows.append(Measurement(experiment, row.values[SCHEDULE], measured, place))
            case_of(rows[-1])
        except InvalidConfiguration as error:
            raise InvalidInput(f"{path}: {error}") from None
    return rows


def _runtime(row: TableRow) -> list[str]:
    """The runtime, in a table of several."""
    return [row.values[BACKEND]] if BACKEND in row.values else []


def _row(given: Mapping[str | None, str | None], where: str) -> TableRow:
    cells = {name: text for name, text in given.items() if name is not None and text is not None}
    if len(cells) != len(given):
        raise InvalidInput(f"{where}: has other cells than there are columns")
    values = {
        name: text for name, text in cells.items() if text and name not in (NETWORK, *NUMBERS)
    }
    numbers = {name: real(cells[name]) for name in NUMBERS}
    for name in ("measured", "predicted"):
        if not is_usable(numbers[name], zero=False):
            raise InvalidInput(f"{where}: {name} must be a positive number, not {cells[name]!r}")
    mean, low, high = (numbers[name] for name in NUMBERS[1:4])
    if not low <= mean <= high:
        raise InvalidInput(f"{where}: measured must be between measured_low and measured_high")
    try:
        experiment = cell_experiment({name: _value(text) for name, text in values.items()})
    except InvalidConfiguration as error:
        raise InvalidInput(f"{where}: {error}") from None
    measured = MeanInterval(mean, low, high)
    return TableRow(cells[NETWORK], values, experiment, measured, numbers["predicted"])


def _value(text: str) -> bool | int | float | str:
    """The value of a study's file that the table writes so."""
    if text in (flags := {"True": True, "False": False}):
        return flags[text]
    if (count := whole(text)) is not None:
        return count
    return text if math.isnan(number := real(text)) else number


def varied(rows: Sequence[TableRow]) -> list[str]:
    """The names of values that differ between rows."""
    names = dict.fromkeys(name for row in rows for name in row.values)
    return [name for name in names if len({row.values.get(name) for row in rows}) > 1]

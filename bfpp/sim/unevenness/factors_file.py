"""Tables of factors: a row for some replica, rank, stage, micro-batch or operation.

A `.csv` file with some of the columns `replica, rank, stage, unit, microbatch, operation`, whose
cells may be empty (any; of operations, any pass), and `factor` or `seconds` (of each task, in place
of its own). Where several rows apply to a task, factors multiply, and the last row's seconds hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import Flags
from bfpp.schedules.errors import did_you_mean
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.sim.presets.numbers import is_usable, real, whole
from bfpp.sim.unevenness.csv_rows import csv_rows
from bfpp.sim.unevenness.replicated_step import Effect, ReplicatedStep
from bfpp.sim.unevenness.work import WorkSource

KEYS = ("replica", "rank", "stage", "unit", "microbatch")
OPERATION, FACTOR, SECONDS = "operation", "factor", "seconds"
FIELD = "factors"


@dataclass(frozen=True)
class FactorRow:
    """A row: its places (None: any), and its number."""

    at: tuple[int | None, ...]
    operation: str | None
    number: float
    is_factor: bool


@dataclass(frozen=True)
class TableOfFactors(WorkSource):
    """Rows of a table; an even step has the mean of each kind of task."""

    name: ClassVar[str] = FIELD
    is_random = False
    is_of_microbatches = False

    rows: tuple[FactorRow, ...]

    def effect(self, step: ReplicatedStep, random: np.random.Generator) -> Effect:
        """Factors, and the seconds that make up the difference to those that are given."""
        del random
        factor, added = np.ones(step.shape), np.zeros(step.shape)
        for row in self.rows:
            replica, tasks = row.at[0], self._tasks(step, row)
            replicas = slice(None) if replica is None else slice(replica, replica + 1)
            if row.is_factor:
                factor[replicas, tasks] *= row.number
            else:
                added[replicas, tasks] = row.number
                factor[replicas, tasks] = 0.0
        return Effect(factor, added)

    def _tasks(self, step: ReplicatedStep, row: FactorRow) -> Flags:
        graph, layout = step.graph, step.graph.layout
        sizes = step.replicas, layout.pp, layout.stages, layout.units, layout.whole_microbatches
        columns = graph.rank, graph.stage, graph.unit, step.microbatch
        for name, number, size in zip(KEYS, row.at, sizes, strict=True):
            if number is not None and number >= size:
                raise InvalidConfiguration(FIELD, f"there is no {name} {number} of {size}")
        tasks: Flags = np.ones(len(graph), dtype=bool)
        for number, column in zip(row.at[1:], columns, strict=True):
            if number is not None:
                tasks &= column == number
        if row.operation is not None:
            codes = [each for each in OPERATIONS if each.title == row.operation]
            return tasks & np.isin(graph.operation, codes)
        return tasks & graph.is_compute


def read_factors(path: str) -> TableOfFactors:
    """The table of a file; raises `InvalidConfiguration` for what is none."""
    names, *table = csv_rows(FIELD, path) or [[]]
    known = (*KEYS, OPERATION, FACTOR, SECONDS)
    for name in names:
        if name not in known:
            reason = f"{path}: column {name!r} is not one of {', '.join(known)}"
            raise InvalidConfiguration(FIELD, f"{reason}{did_you_mean(name, known)}")
    if (FACTOR in names) == (SECONDS in names):
        raise InvalidConfiguration(FIELD, f"{path} needs a column factor or a column seconds")
    rows = tuple(
        _row(f"{path}: row {number}", dict(zip(names, each, strict=False)))
        for number, each in enumerate(table, 1)
    )
    if not rows:
        raise InvalidConfiguration(FIELD, f"{path} holds no rows")
    return TableOfFactors(rows)


def _row(where: str, cells: dict[str, str]) -> FactorRow:
    said = {name: cells.get(name, "") for name in (*KEYS, OPERATION, FACTOR, SECONDS)}
    for name in KEYS:
        if said[name] and whole(said[name]) is None:
            raise InvalidConfiguration(FIELD, f"{where}: {name} is {said[name]!r}, not a number")
    titles = [each.title for each in OPERATIONS]
    operation = said[OPERATION] or None
    if operation and operation not in titles:
        reason = f"{where}: there is no operation {operation!r}{did_you_mean(operation, titles)}"
        raise InvalidConfiguration(FIELD, reason)
    value = real(said[FACTOR] or said[SECONDS])
    if not is_usable(value):
        raise InvalidConfiguration(FIELD, f"{where}: needs a number of at least 0")
    return FactorRow(
        tuple(whole(said[name]) for name in KEYS), operation, value, bool(said[FACTOR])
    )

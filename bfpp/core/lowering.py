"""From the table of steps to the tasks of a graph."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.core.library import function
from bfpp.core.orders import Integers, Offsets, Steps

Flags = npt.NDArray[np.bool_]

DRAFT_COLUMNS = 8
RULE_GATHERS_RUNS, RULE_REDUCES_RUNS, RULE_OFFLOAD = 1, 2, 8
"""Places among the rules, as `source/lowering/lowering.h` has them."""


class DraftFault(IntEnum):
    """Why copies of a unit cannot be gathered or reduced run by run, as `source/lowering.h`."""

    NONE = 0
    PREFETCH_TOO_LATE = 1
    WEIGHTS_TOO_LATE = 2
    GRADIENTS_TOO_LATE = 3


class Units(NamedTuple):
    """Places of units: their ranks, their numbers there, and the ranks that share stages.

    `ends` are the two ranks, at most, of the first and the last unit; -1 is for none.
    """

    rank_of_unit: Integers
    unit_on_rank: Integers
    peer_of_rank: Integers
    ends: Integers


class MadeTables(NamedTuple):
    """When operations are made: `rules` of the communication, and tables as `lowering.h` has them.

    `phase` is of each operation, and so are the columns of those that are declared by their data.
    """

    rules: Offsets
    made_by: Integers
    phase: Integers
    made: Integers
    scope: Integers
    after: Integers
    before: Integers
    wait_bounds: Offsets
    waits: Integers
    all: Flags

    @property
    def phases(self) -> int:
        """Number of phases of a round."""
        return int(self.phase.max()) + 1


class Draft(NamedTuple):
    """Tasks by provisional number, or the unit that is in the way of a fault."""

    fault: DraftFault
    unit: int
    rows: Integers
    key: Offsets
    edges: npt.NDArray[np.uint32]
    begins: Integers


class Numbered(NamedTuple):
    """Columns of tasks by number: operations, and then from the rank to the block; dependencies.

    `begins` lists tasks with the compute step that each begins no earlier than.
    """

    operation: npt.NDArray[np.int8]
    columns: Integers
    dependency_start: Offsets
    dependency: Integers
    begins: Integers


def draft(steps: Steps, units: Units, tables: MadeTables, microbatches: int, copies: int) -> Draft:
    """The tasks of a step, and what each waits for, by provisional number."""
    ranks, count = len(steps.bounds) - 1, len(steps.rank)
    every, made, waits = len(units.rank_of_unit), len(tables.made), len(tables.waits)
    after = tables.after.tolist()
    by_pass, at_end = count * sum(map(bool, after)), after.count(0) * max(ranks, every)
    by_run, once = 2 * count, 2 * every * (1 + copies)
    most_tasks = 2 * count + by_pass + at_end + 1
    has_runs = tables.rules[RULE_GATHERS_RUNS] or tables.rules[RULE_REDUCES_RUNS]
    most_tasks += by_run if has_runs else once
    most_tasks += 2 * count if tables.rules[RULE_OFFLOAD] else 0
    most_edges = 2 * (most_tasks + count + by_pass) + 2 * (waits + made) * max(ranks, every)
    most_edges += sum(tables.all.tolist()) * ranks * max(ranks, every)
    rows = np.empty((most_tasks, DRAFT_COLUMNS), dtype=np.int32)
    key = np.empty(most_tasks, dtype=np.int64)
    edges = np.empty((most_edges, 2), dtype=np.uint32)
    begins = np.empty((count, 2), dtype=np.int32)
    counts = np.zeros(4, dtype=np.int64)
    fault = function("draft")(
        ranks, every, microbatches, count, copies, most_tasks, most_edges,
        len(tables.phase), tables.phases, made, waits,
        *steps, *units, *tables, rows, key, edges, begins, counts,
    )  # fmt: skip
    tasks, edge_count, bounded, unit = counts.tolist()
    return Draft(
        DraftFault(fault), unit, rows[:tasks], key[:tasks], edges[:edge_count], begins[:bounded]
    )


def number(drafted: Draft, phases: int) -> Numbered:
    """The tasks in the order of their keys; those of one key as they were drafted."""
    tasks, waits = len(drafted.key), len(drafted.edges)
    operation = np.empty(tasks, dtype=np.int8)
    columns = np.empty((DRAFT_COLUMNS, tasks), dtype=np.int32)
    start, dependency = np.empty(tasks + 1, dtype=np.int64), np.empty(waits, dtype=np.int32)
    begins = drafted.begins.copy()
    kept = function("number")(
        tasks, waits, len(begins), phases, drafted.rows, drafted.key, drafted.edges, begins,
        operation, columns, start, dependency,
    )  # fmt: skip
    return Numbered(operation, columns, start, dependency[:kept], begins)

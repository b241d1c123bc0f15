"""From the table of steps to the tasks of a graph."""

from __future__ import annotations

from enum import IntEnum
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.core.graph import KindColumns, TaskFlags
from bfpp.core.library import function
from bfpp.core.orders import Integers, Offsets, Steps

Flags = npt.NDArray[np.bool_]

COLUMNS = 11
RULE_GATHERS_RUNS, RULE_REDUCES_RUNS, RULE_OFFLOAD = 1, 2, 8
"""Places among the rules, as `source/lowering/lowering.h` has them."""


class LoweringFault(IntEnum):
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
    """Rules of when operations are made, and tables as `lowering.h` has them.

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


class OperationTables(NamedTuple):
    """For each operation its place among kinds, its streams, and whether and how it computes.

    Streams are those of `lanes.find_lanes`, places those of `graph.kinds`, flags of `graph.flags`.
    """

    place: Integers
    stream_of: Integers
    arrives_on: Integers
    by_peer: Flags
    computes: Flags
    backward: Flags


class Tables:
    """All tables of a communication, and how many tasks and waits follow from them at most."""

    def __init__(self, made: MadeTables, operations: OperationTables) -> None:
        self.made, self.operations = made, operations
        self.phases = int(made.phase.max()) + 1
        after, rules = made.after.tolist(), made.rules.tolist()
        self._by_pass, self._at_end = sum(map(bool, after)), after.count(0)
        self._has_runs = bool(rules[RULE_GATHERS_RUNS] or rules[RULE_REDUCES_RUNS])
        self._offloads = bool(rules[RULE_OFFLOAD])
        self._waits = len(made.waits) + len(made.made)
        self._of_all = sum(made.all.tolist())

    def room(self, steps: int, units: int, ranks: int, copies: int) -> tuple[int, int]:
        """The most tasks and waits that there may be."""
        most, by_pass = max(ranks, units), self._by_pass * steps
        tasks = 2 * steps + by_pass + self._at_end * most + 1
        tasks += 2 * steps if self._has_runs else 2 * units * (1 + copies)
        tasks += 2 * steps if self._offloads else 0
        waits = 2 * (tasks + steps + by_pass) + (2 * self._waits + self._of_all * ranks) * most
        return tasks, waits


class Lowered(NamedTuple):
    """Columns of tasks by number: operations, then from the rank to the block, and their lanes.

    `lanes` are rank, stream and peer of each; `begins` lists tasks with the compute step that each
    begins no earlier than.
    """

    operation: npt.NDArray[np.int8]
    columns: Integers
    dependencies: tuple[Offsets, Integers]
    followers: tuple[Offsets, Integers]
    flags: TaskFlags
    kinds: KindColumns
    lanes: Integers
    begins: Integers


class TooLate(Exception):
    """Copies of a unit use buffers in turns that cannot be."""

    def __init__(self, fault: LoweringFault, unit: int) -> None:
        super().__init__(fault, unit)
        self.fault, self.unit = fault, unit


def lower(steps: Steps, units: Units, tables: Tables, microbatches: int, copies: int) -> Lowered:
    """The tasks of a step, and all that graphs are asked for; raises `TooLate`."""
    made, operations = tables.made, tables.operations
    count, every, ranks = len(steps.rank), len(units.rank_of_unit), len(steps.bounds) - 1
    most, waits = tables.room(count, every, ranks, copies)
    operation = np.empty(most, dtype=np.int8)
    columns, lanes, first, dependency, follower, begins = _pieces(
        np.int32, most * COLUMNS, most * 6, most, waits, waits + 2 * most, 2 * count
    )
    start, follower_start, code, counts = _pieces(np.int64, most + 1, most + 1, most, 8)
    is_compute, is_pass = _pieces(np.bool_, most, most)
    fault = function("lower")(
        ranks, every, microbatches, count, copies,
        most, waits, len(made.phase), tables.phases, len(made.made), len(made.waits),
        len(operations.by_peer),
        *steps, *units, *made, *operations, operation, columns, start, dependency,
        follower_start, follower, is_compute, is_pass, code, first, lanes, begins, counts,
    )  # fmt: skip
    tasks, kept, bounded, unit, kinds, count, following, trains = counts.tolist()
    if fault:
        raise TooLate(LoweringFault(fault), unit)
    filled = columns[: tasks * COLUMNS].reshape(COLUMNS, tasks)
    return Lowered(
        operation[:tasks],
        filled[:-1],
        (start[: tasks + 1], dependency[:kept]),
        (follower_start[: tasks + 1], follower[:following]),
        TaskFlags(is_compute[:tasks], is_pass[:tasks], bool(trains)),
        KindColumns(code[:kinds].copy(), first[:kinds].copy(), filled[-1]),
        lanes[: 3 * count],
        begins[: 2 * bounded].reshape(-1, 2),
    )


def count_exchanges(
    steps: Steps, units: Units, tables: Tables, microbatches: int, copies: int
) -> tuple[Offsets, Offsets]:
    """Gathers and reductions of each unit in a step, which is not lowered for that."""
    every, ranks = len(units.rank_of_unit), len(steps.bounds) - 1
    gathers, reductions = np.empty((2, every), dtype=np.int64)
    function("count_exchanges")(
        ranks, every, microbatches, len(steps.rank), copies,
        *steps, *units, tables.made.rules, gathers, reductions,
    )  # fmt: skip
    return gathers, reductions


def _pieces(kind: type[Any], *lengths: int) -> list[Any]:
    """Arrays in one allocation: many that come and go let memory return to the system each time."""
    ends = [*accumulate(lengths)]
    block = np.empty(ends[-1], dtype=kind)
    return [block[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

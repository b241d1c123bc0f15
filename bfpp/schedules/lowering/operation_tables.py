"""Tables of the lowering's operations, their places and dependencies: from the rows of operations.

An operation at the end of a step waits for those that write the data it reads. Of these it leaves
out what others already wait for: the optimizer waits for the norm, and not for the reductions that
the norm is of.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from bfpp.core.lowering import MadeTables, OperationTables, Tables
from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.graph.lanes import streams_of_operations
from bfpp.schedules.graph.task_kinds import operation_flags
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.operations.built_in import PASSES
from bfpp.schedules.operations.data import Datum
from bfpp.schedules.operations.operations import OPERATIONS, Operation
from bfpp.schedules.operations.row import Made, Scope
from bfpp.schedules.settings.sharding import Communication, Sharding

ANY_LENGTH, UNBOUNDED = 0, -1
"""The length of runs that may have any, and the prefetch of gathers that buffers alone bound."""

PAIR = 2
"""Ranks of a task at most."""

NO_ENDS = -1, -1
"""The ranks of both ends where no task is of these."""


class Lowering(NamedTuple):
    """Tables by which steps with one communication are lowered; if some tasks are of both ends."""

    tables: Tables
    ties_ends: bool


def lowering_of(communication: Communication, *, copies: bool) -> Lowering:
    """The tables by which steps with this communication are lowered.

    Raises `InvalidConfiguration` for choices that exclude each other, or `copies` of stages.
    """
    return _lowering_of(communication, copies, len(OPERATIONS))


@cache
def _lowering_of(communication: Communication, copies: bool, operations: int) -> Lowering:
    communication.require(copies=copies)
    flags, streams = operation_flags(), streams_of_operations(communication, operations)
    of_operations = OperationTables(flags.place, *streams, flags.is_compute, flags.is_backward)
    ties_ends = any(
        each.row.scope is Scope.ENDS and each.row.happens(communication) for each in OPERATIONS
    )
    return Lowering(Tables(_made_tables(communication, operations), of_operations), ties_ends)


def _made_tables(communication: Communication, operations: int) -> MadeTables:
    phase, made_by = np.zeros(operations, np.int32), np.full(len(Made), -1, np.int32)
    declared = []
    for number, together in enumerate(phases(communication)):
        for each in together:
            phase[each], made_by[each.row.made] = number, each
            if each.row.made in (Made.AFTER_PASSES, Made.AFTER_DATA):
                declared.append(each)
    waits = [list(_waits(each, communication)) for each in declared]
    scopes = list(Scope)
    return MadeTables(
        rules=_rules(communication),
        made_by=made_by,
        phase=phase,
        made=np.array(declared, dtype=np.int32),
        scope=np.array([scopes.index(each.row.scope) for each in declared], dtype=np.int32),
        after=_bits([each.row.after for each in declared]),
        before=_bits([each.row.awaited_by for each in declared]),
        wait_bounds=np.cumsum([0, *map(len, waits)]),
        waits=np.array([other for each in waits for other, _ in each], dtype=np.int32),
        all=np.array([of_all for each in waits for _, of_all in each], dtype=np.bool_),
    )


def _bits(passes: list[tuple[str, ...]]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Passes among these names, by bits of their codes."""
    codes = [[PASSES.index(name) for name in names if name in PASSES] for names in passes]
    return np.array([sum(1 << code for code in each) for each in codes], dtype=np.int32)


def _rules(communication: Communication) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Settings that decide tasks and their order, as `RULES` of the core's `lowering.h`."""
    return np.array(
        [
            communication.sharding is not Sharding.NONE,
            communication.gathers_runs,
            communication.reduces_runs,
            communication.run_length or ANY_LENGTH,
            communication.weight_buffers,
            communication.runs_ahead,
            UNBOUNDED if communication.prefetch is None else communication.prefetch,
            not (communication.dp_overlap or communication.reduces_runs),
            communication.offload,
            communication.offload_ahead,
        ],
        dtype=np.int64,
    )


def phases(communication: Communication) -> list[tuple[Operation, ...]]:
    """Operations that are made, in the order of a round's phases: after all that they wait for."""
    by_made = {made: [each for each in OPERATIONS if each.row.made is made] for made in Made}
    sends = by_made[Made.SENDING_OUTPUT] + by_made[Made.SENDING_GRADIENT]
    ordered = [tuple(by_made[Made.IN_ORDER]), tuple(sends)]
    for made in (Made.OFFLOADING, Made.RELOADING, Made.BEFORE_RUNS, Made.AFTER_RUNS,
                 Made.AFTER_PASSES):  # fmt: skip
        ordered += [(each,) for each in by_made[made]]
    left = [each for each in by_made[Made.AFTER_DATA] if each.row.happens(communication)]
    while left:
        ready = next(
            (
                each
                for each in left
                if not {other for other, _ in _waits(each, communication)}.intersection(left)
            ),
            None,
        )
        if ready is None:
            names = ", ".join(each.name for each in left)
            raise InvalidConfiguration("schedule", f"the operations {names} wait for each other")
        left.remove(ready)
        ordered.append((ready,))
    return ordered


def _waits(operation: Operation, communication: Communication) -> Iterator[tuple[Operation, bool]]:
    """The operations that write the inputs of an operation at the end of a step.

    And whether it waits for those of all ranks.
    """
    if operation.row.made is not Made.AFTER_DATA:
        return
    read = [needed.datum for needed in operation.reads]
    written = {datum: _writers(datum, communication) for datum in read}
    for datum in read:
        others = [each for other in read for each in written[other] if other != datum]
        if any(_stands_for(other, datum) for other in others):
            continue
        for each in written[datum]:
            if each is not operation:
                yield each, datum.of_all_ranks


def _writers(datum: Datum, communication: Communication) -> list[Operation]:
    """The operations that are made and write a datum."""
    return [
        each
        for each in OPERATIONS
        if datum in each.row.writes
        and each.row.made is not Made.INSIDE
        and each.row.happens(communication)
    ]


def _stands_for(operation: Operation, datum: Datum) -> bool:
    """True if an operation of every unit or rank waits for a datum."""
    everywhere = operation.row.scope in (Scope.UNIT, Scope.RANK)
    return everywhere and any(needed.datum == datum for needed in operation.reads)


def ends_of(layout: Layout) -> tuple[int, int]:
    """The ranks of tasks of both ends, for the gradients of tied parameters: -1 for none.

    Raises `InvalidConfiguration` for more than two. A single unit has nothing to add.
    """
    if layout.units == 1:
        return NO_ENDS
    if len(layout.ends) > PAIR:
        raise InvalidConfiguration(
            "tied_embeddings",
            f"the copies of the first and the last stage are on {len(layout.ends)} ranks, "
            "not on the same two",
        )
    rank, peer, *_ = (*layout.ends, -1)
    return rank, peer

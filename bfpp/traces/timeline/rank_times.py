"""Compute and exposed communication of each rank."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from bfpp.core import rank_times as core
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.graph.task_kinds import operation_flags
from bfpp.schedules.operations.operations import OPERATIONS, Operation
from bfpp.schedules.operations.row import DATA_PARALLEL, Group, Scope
from bfpp.schedules.settings.sharding import Communication

TRANSFERS = {Group.P2P}
REDUCTIONS = {*DATA_PARALLEL, Group.ENDS}
MODEL_PARALLEL = {Group.TP, Group.CP, Group.EP}
COMMUNICATING = TRANSFERS, REDUCTIONS, MODEL_PARALLEL
"""The kinds of communication, by the groups of devices that communicate."""


def rank_times(graph: TaskGraph, start: Seconds, end: Seconds) -> core.RankTimes:
    """The rank times of a graph, given starts and ends of its tasks.

    What is exposed has a row for each of `COMMUNICATING`.
    """
    kind = kinds_of_communication(graph.communication)
    kind[operation_flags().is_compute] = len(COMMUNICATING)
    rank_of_lane = np.array([lane.rank for lane in graph.lanes], dtype=np.int32)
    return core.rank_times(
        graph.operation, graph.lane, graph.peer_lane, kind, len(COMMUNICATING) + 1,
        rank_of_lane, graph.layout.pp, start, end,
    )  # fmt: skip


def kinds_of_communication(communication: Communication) -> Integers:
    """For each operation, its place in `COMMUNICATING`, or `NONE`."""
    kinds = np.full(len(OPERATIONS), NONE, dtype=np.int32)
    for number, groups in enumerate(COMMUNICATING):
        kinds[communicating(groups, communication)] = number
    return kinds


def communicating(groups: Collection[Group], communication: Communication) -> list[Operation]:
    """Operations in which such groups communicate, for a stage or a micro-batch."""
    return [
        operation
        for operation in OPERATIONS
        if operation.group(communication) in groups and operation.row.scope is not Scope.RANK
    ]

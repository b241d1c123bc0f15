"""Columns of a task graph, and groups and flags of tasks derived from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bfpp.core import graph as core
from bfpp.schedules.columns import NONE, Flags, Groups, Integers, group_both_ends, group_by
from bfpp.schedules.graph.lanes import Lane
from bfpp.schedules.graph.task_kinds import operation_flags
from bfpp.schedules.graph.templates import Templates
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.operations.operations import OPERATIONS, Operation
from bfpp.schedules.orders.posts import NOWHERE, Posts
from bfpp.schedules.settings.sharding import Communication

COLUMNS = (
    "operation", "rank", "peer", "unit", "microbatch", "lane", "peer_lane", "weight_buffer",
    "gradient_buffer", "piece", "block",
)  # fmt: skip
"""The columns that hold one number for each task."""

TYPES = {name: np.dtype(np.int8 if name == "operation" else np.int32) for name in COLUMNS}
"""The type of each column."""


@dataclass(frozen=True, eq=False, repr=False)
class TaskColumns:
    """The data of a `TaskGraph`: a column for each property of its tasks, and its lanes.

    Whatever works on columns alone, and is itself a part of what a `TaskGraph` offers, takes this.
    """

    schedule: str
    layout: Layout
    communication: Communication
    lanes: tuple[Lane, ...]
    operation: npt.NDArray[np.int8]
    rank: Integers
    peer: Integers
    unit: Integers
    microbatch: Integers
    lane: Integers
    peer_lane: Integers
    weight_buffer: Integers
    gradient_buffer: Integers
    piece: Integers
    block: Integers
    dependencies: Groups
    templates: Templates = field(default_factory=dict)
    posts: Posts = NOWHERE

    def __post_init__(self) -> None:
        """Give columns the type that compiled loops take, whatever a caller made them of."""
        for name, kind in TYPES.items():
            column = getattr(self, name)
            if column.dtype != kind or not column.flags.c_contiguous:
                object.__setattr__(self, name, np.ascontiguousarray(column, dtype=kind))
        start, member = self.dependencies
        if start.dtype != np.int64 or member.dtype != np.int32:
            groups = Groups(start.astype(np.int64), member.astype(np.int32))
            object.__setattr__(self, "dependencies", groups)

    def __len__(self) -> int:
        return len(self.operation)

    @cached_property
    def lane_tasks(self) -> Groups:
        """For each lane, its tasks in order."""
        return group_both_ends(self.lane, self.peer_lane, len(self.lanes))

    @cached_property
    def rank_tasks(self) -> Groups:
        """For each rank, its tasks in order, with its receives among them."""
        return group_both_ends(self.rank, self.peer, self.layout.pp)

    @cached_property
    def compute_tasks(self) -> Groups:
        """For each rank, its compute steps in order."""
        steps = np.flatnonzero(self.is_compute).astype(np.int32)
        return group_by(self.rank[steps], steps, self.layout.pp)

    @cached_property
    def dependents(self) -> Groups:
        """For each task, the tasks that list it among their dependencies."""
        return group_by(self.dependencies.member, self.dependent, len(self))

    @cached_property
    def followers(self) -> Groups:
        """For each task, those that wait for it: its dependents, and the next on its lanes."""
        lanes = self.lane, self.peer_lane, len(self.lanes)
        return Groups(*core.followers(*lanes, *self.dependencies))

    @cached_property
    def predecessors(self) -> Groups:
        """For each task, those that it waits for: its dependencies, then the last on its lanes."""
        ahead, behind = self.lane_neighbours
        return group_by(
            np.append(self.dependent, behind),
            np.append(self.dependencies.member, ahead),
            len(self),
        )

    @property
    def lane_neighbours(self) -> tuple[Integers, Integers]:
        """Each task that another follows on a lane, and the one that does."""
        start, task = self.lane_tasks
        follows = np.ones(len(task) + 1, dtype=bool)
        follows[start] = False  # the last lanes may be empty
        return task[:-1][follows[1:-1]], task[1:][follows[1:-1]]

    def by_operation(self) -> Iterator[tuple[Operation, Integers]]:
        """Each operation in the graph, with its tasks."""
        for operation in self.operations:
            yield operation, np.flatnonzero(self.operation == operation).astype(np.int32)

    @property
    def operations(self) -> list[Operation]:
        """The operations that there are, in the order of their codes."""
        return [OPERATIONS[code] for code in np.flatnonzero(np.bincount(self.operation)).tolist()]

    @cached_property
    def stage(self) -> Integers:
        """For each task, the stage of its unit."""
        return np.append(self.layout.stage_of_unit, np.int32(NONE))[self.unit]

    @property
    def dependent(self) -> Integers:
        """For each dependency, the task that has it."""
        numbers = np.arange(len(self), dtype=np.int32)
        return np.repeat(numbers, np.diff(self.dependencies.start))

    @cached_property
    def rank_of_cell(self) -> Integers:
        """For each unit and micro-batch, the rank that runs it: of two copies', one."""
        rank = np.tile(self.layout.rank_of_unit[:, np.newaxis], self.layout.microbatches)
        if self.layout.copies:
            forward = np.flatnonzero(self.operation == Operation.FORWARD)
            rank[self.unit[forward], self.microbatch[forward]] = self.rank[forward]
        return rank

    def takes_part(self, rank: int) -> Flags:
        """The tasks that a rank has an end of."""
        own: Flags = (self.rank == rank) | (self.peer == rank)
        return own

    @property
    def trains(self) -> bool:
        """True if there are backward passes: forward passes alone evaluate a model."""
        return self._flags.trains

    @property
    def is_compute(self) -> Flags:
        """Forward and backward passes, which a schedule orders."""
        return self._flags.is_compute

    @property
    def is_pass(self) -> Flags:
        """The same, with the exchanges inside passes that are in pieces."""
        return self._flags.is_pass

    @cached_property
    def _flags(self) -> core.TaskFlags:
        flags = operation_flags()
        return core.flags(self.operation, self.piece, flags.is_compute, flags.is_backward)

    @cached_property
    def is_whole(self) -> Flags:
        """One task for each pass: all but the pieces after the first one of its compute."""
        whole = np.ones(len(self), dtype=bool)
        pieces = np.flatnonzero(self.is_compute & (self.piece != NONE))
        whole[pieces] = False
        passes = np.stack([self.operation, self.unit, self.microbatch])[:, pieces]
        first = np.unique(passes, axis=1, return_index=True)[1]
        whole[pieces[first]] = True
        return whole

    @cached_property
    def is_transfer(self) -> Flags:
        """Tasks on two lanes."""
        return operation_flags().is_transfer.take(self.operation)

    def lanes_of(self, rank: int) -> list[int]:
        """The numbers of a rank's lanes, compute first."""
        return [number for number, lane in enumerate(self.lanes) if lane.rank == rank]

"""The task graph: one training step, or an evaluation, as columns.

Rules that every graph keeps (and that `bfpp.schedules.validity` checks):

- Tasks are numbered in an order in which they could run: every dependency has
  a smaller number. The order of each lane is the order of its tasks' numbers.
- A lane is one in-order queue of a rank. A transfer is one task on two lanes,
  one at the sender and one at the receiver; it starts when it heads both.
- A block is a forward and a backward pass that run as one: two tasks that follow one another
  on their lane. What either waits for, the first one waits for; what waits for either waits
  for the second.
- Columns hold -1 (`NONE`) where a task has no such thing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bfpp.schedules.absences import Absences, absences
from bfpp.schedules.columns import NONE, Flags, Groups, Integers, group_both_ends, group_by
from bfpp.schedules.communication import Communication
from bfpp.schedules.composite import Templates, expanded, require_templates
from bfpp.schedules.kinds import Kinds, kinds_of, operation_flags, places_of_operations
from bfpp.schedules.layout import Layout
from bfpp.schedules.notebook import table
from bfpp.schedules.operations import (
    MOST,
    OPERATIONS,
    Operation,
)
from bfpp.schedules.tasks import Lane, Task

if TYPE_CHECKING:
    from networkx import DiGraph

COLUMNS = (
    "operation", "rank", "peer", "unit", "microbatch", "lane", "peer_lane", "weight_buffer",
    "gradient_buffer", "piece", "block",
)  # fmt: skip
"""The columns that hold one number for each task."""


@dataclass(frozen=True, eq=False, repr=False)
class TaskGraph:
    """One training step: columns over tasks, and the table of lanes.

    For a transfer, `unit` is the unit whose output it carries: activations
    go from it to unit + 1, gradients to unit - 1. `dependencies` lists, for
    each task, the tasks that must have ended before it starts; the order of a
    lane comes on top of these and is not repeated in them. `templates` are those of
    passes with communication inside; `expanded` shows their pieces.

    >>> import bfpp
    >>> graph = bfpp.build_graph("1f1b", bfpp.Layout(2, 2))
    >>> for number in range(3):
    ...     print(graph.task(number))
    #0 forward of stage 0 micro-batch 0 on rank 0
    #1 transfer activations of stage 0 micro-batch 0 from rank 0 to 1
    #2 forward of stage 0 micro-batch 1 on rank 0
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

    def __len__(self) -> int:
        return len(self.operation)

    def __repr__(self) -> str:
        return f"<TaskGraph {self.schedule}: {self.layout}, {len(self):,} tasks>"

    def _repr_html_(self) -> str:
        """The number of tasks of each operation, for a notebook."""
        rows = (
            (operation.called(self.communication), f"{len(tasks):,}")
            for operation, tasks in self.by_operation()
        )
        return table(repr(self), rows)

    def task(self, number: int) -> Task:
        """The task of that number."""
        operation = OPERATIONS[self.operation[number]]
        return Task(
            number,
            operation,
            operation.called(self.communication),
            int(self.rank[number]),
            int(self.peer[number]),
            int(self.stage[number]),
            int(self.unit[number]),
            int(self.microbatch[number]),
            int(self.lane[number]),
            int(self.peer_lane[number]),
            int(self.weight_buffer[number]),
            int(self.gradient_buffer[number]),
            int(self.piece[number]),
            int(self.block[number]),
            tuple(self.dependencies.of(number).tolist()),
        )

    def tasks(self) -> Iterator[Task]:
        """All tasks, in the order of their numbers."""
        return map(self.task, range(len(self)))

    @cached_property
    def lane_tasks(self) -> Groups:
        """For each lane, its tasks in order."""
        return group_both_ends(self.lane, self.peer_lane, len(self.lanes))

    @cached_property
    def rank_tasks(self) -> Groups:
        """For each rank, its tasks in order, what it receives among them."""
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
        ahead, behind = self.lane_neighbours
        return group_by(
            np.append(self.dependencies.member, ahead),
            np.append(self.dependent, behind),
            len(self),
        )

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
        """Each operation that there is, and its tasks."""
        for code in np.unique(self.operation).tolist():
            yield OPERATIONS[code], np.flatnonzero(self.operation == code).astype(np.int32)

    @cached_property
    def kinds(self) -> Kinds:
        """The tasks by what they do at which unit, on which ranks: those of one kind cost alike."""
        place = places_of_operations()[self.operation]
        columns = place, self.unit + 1, self.rank, self.peer + 1
        sizes = MOST, self.layout.units + 1, self.layout.pp, self.layout.pp + 1
        code = np.ravel_multi_index([column.astype(np.int64) for column in columns], sizes)
        codes, first, of_task = np.unique(code, return_index=True, return_inverse=True)
        return kinds_of(
            codes, self.operation[first], first.astype(np.int32), of_task.astype(np.int32)
        )

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

    @cached_property
    def trains(self) -> bool:
        """Whether there are backward passes: forward passes alone evaluate a model."""
        return bool(operation_flags(len(OPERATIONS)).is_backward.take(self.operation).any())

    @cached_property
    def is_compute(self) -> Flags:
        """Forward and backward passes: what a schedule orders."""
        return operation_flags(len(OPERATIONS)).is_compute.take(self.operation)

    @cached_property
    def is_pass(self) -> Flags:
        """The same, with what is exchanged inside passes that are in pieces."""
        passes: Flags = self.is_compute | (self.piece != NONE)
        return passes

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
    def absences(self) -> Absences:
        """When offloaded activations are away from their device."""
        return absences(self)

    @cached_property
    def is_transfer(self) -> Flags:
        """Tasks on two lanes."""
        return operation_flags(len(OPERATIONS)).is_transfer.take(self.operation)

    @cached_property
    def digest(self) -> str:
        """A hexadecimal SHA-256 of all that decides what runs; the same on every machine.

        The schedule's name is not part of it: an order by another name is the
        same step. Operations count by name, whatever their codes are here.
        """
        present = [OPERATIONS[code].name for code in np.unique(self.operation).tolist()]
        lanes = [(lane.rank, lane.stream.name, lane.peer) for lane in self.lanes]
        templates = sorted(
            (operation.name, unit, [(piece.operation.name, piece.share) for piece in template])
            for (operation, unit), template in self.templates.items()
        )
        stated = [asdict(self.layout), asdict(self.communication), lanes, present, templates]
        digest = sha256(json.dumps(stated, sort_keys=True).encode())
        columns = [getattr(self, name) for name in COLUMNS]
        for column in (*columns, self.dependencies.start, self.dependencies.member):
            # The length keeps what ends one column from counting as the next one's begin.
            digest.update(len(column).to_bytes(8, "little"))
            digest.update(column.astype("<i8").tobytes())
        return digest.hexdigest()

    def with_templates(self, templates: Templates) -> TaskGraph:
        """The graph with these passes as composites.

        Raises `InvalidConfiguration` for a template that a pass cannot have.
        """
        require_templates(self, templates)
        graph = replace(self, templates=dict(templates))
        # What has been found of the tasks still holds, but for the digest.
        replaced = "templates", "digest"
        vars(graph).update(
            {name: each for name, each in vars(self).items() if name not in replaced}
        )
        return graph

    def expanded(self) -> TaskGraph:
        """The graph with a task for each piece of its composite passes."""
        return expanded(self)

    def to_networkx(self) -> DiGraph:
        """The tasks and what they wait for, as a `networkx.DiGraph` for an analysis of one's own.

        Nodes are task numbers, with the fields of a `Task` as attributes; an edge has the
        `kind` "dependency" or, from each task to the next of a lane, "lane".

        >>> from bfpp.schedules import Layout, build_graph
        >>> graph = build_graph("1f1b", Layout(2, 2)).to_networkx()
        >>> graph.nodes[0]["operation"], graph.number_of_edges()
        ('FORWARD', 22)
        """
        import networkx

        found = networkx.DiGraph(schedule=self.schedule)
        for task in self.tasks():
            attributes = {**task._asdict(), "operation": task.operation.name}
            del attributes["number"], attributes["dependencies"]
            found.add_node(task.number, **attributes)
        ahead, behind = self.lane_neighbours
        found.add_edges_from(zip(ahead.tolist(), behind.tolist(), strict=True), kind="lane")
        waits = zip(self.dependencies.member.tolist(), self.dependent.tolist(), strict=True)
        found.add_edges_from(waits, kind="dependency")
        return found

    def lanes_of(self, rank: int) -> list[int]:
        """The numbers of a rank's lanes, compute first."""
        return [number for number, lane in enumerate(self.lanes) if lane.rank == rank]

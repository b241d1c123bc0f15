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

from bfpp.core import graph as core
from bfpp.schedules.columns import Groups, Integers
from bfpp.schedules.graph.composite_tasks import expanded, require_templates
from bfpp.schedules.graph.notebook import table
from bfpp.schedules.graph.residency import Absences, absences
from bfpp.schedules.graph.task_columns import COLUMNS, TaskColumns
from bfpp.schedules.graph.task_kinds import Kinds, kinds_of, operation_flags
from bfpp.schedules.graph.tasks import Task
from bfpp.schedules.graph.templates import Templates
from bfpp.schedules.operations.operations import OPERATIONS

if TYPE_CHECKING:  # networkx takes longer to load than all of this package
    from networkx import DiGraph


@dataclass(frozen=True, eq=False, repr=False)
class TaskGraph(TaskColumns):
    """One training step: columns over tasks, and the table of lanes.

    For a transfer, `unit` is the unit whose output it carries: activations
    go from it to unit + 1, gradients to unit - 1. `dependencies` lists, for
    each task, the tasks that must have ended before it starts; the order of a
    lane comes on top of these and is not repeated in them. `templates` are those of
    passes with communication inside; `expanded` shows their pieces. `posts` is the order in which
    each rank posts its sends and receives; on channels, lanes have it. `is_checked` is true
    once it is known to be valid, but not of a changed copy.

    >>> import bfpp
    >>> graph = bfpp.build_graph("1f1b", bfpp.Layout(2, 2))
    >>> for number in range(3):
    ...     print(graph.task(number))
    #0 forward of stage 0 micro-batch 0 on rank 0
    #1 transfer activations of stage 0 micro-batch 0 from rank 0 to 1
    #2 forward of stage 0 micro-batch 1 on rank 0
    """

    is_checked: bool = field(default=False, init=False)

    def checked(self) -> TaskGraph:
        """The graph itself, which is valid from now on for all who ask."""
        object.__setattr__(self, "is_checked", True)
        return self

    def remember(self, kinds: core.KindColumns, flags: core.TaskFlags, followers: Groups) -> None:
        """Keep properties of the tasks that are already known, and would be computed on demand."""
        known = {"kinds": kinds_of(kinds, self.operation), "_flags": flags, "followers": followers}
        vars(self).update(known)

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
    def kinds(self) -> Kinds:
        """Kinds of tasks, by operation, unit and ranks: those of one kind cost alike."""
        return kinds_of(
            core.kinds(
                self.operation, self.unit, self.rank, self.peer, operation_flags().place,
                self.layout.units, self.layout.pp,
            ),
            self.operation,
        )  # fmt: skip

    @cached_property
    def absences(self) -> Absences:
        """Periods in which offloaded activations are not resident."""
        return absences(self)

    @cached_property
    def ends_posted_before(self) -> Integers:
        """For each compute task, the ends of transfers that its rank posts right before it."""
        ends = np.zeros(len(self), dtype=np.int32)
        for rank in range(self.layout.pp):
            own = self.compute_tasks.of(rank)
            places = np.searchsorted(own, self.posts.after[self.posts.rank == rank], side="right")
            np.add.at(ends, own[places[places < len(own)]], 1)
        return ends

    @cached_property
    def digest(self) -> str:
        """A hexadecimal SHA-256 of all that an execution depends on; the same on every machine.

        The schedule's name is not part of it: an order by another name is the
        same step. Operations count by name, whatever their codes are here.
        """
        present = [operation.name for operation in self.operations]
        lanes = [(lane.rank, lane.stream.name, lane.peer) for lane in self.lanes]
        templates = sorted(
            (operation.name, unit, [(piece.operation.name, piece.share) for piece in template])
            for (operation, unit), template in self.templates.items()
        )
        stated = [asdict(self.layout), asdict(self.communication), lanes, present, templates]
        digest = sha256(json.dumps(stated, sort_keys=True).encode())
        columns = [getattr(self, name) for name in COLUMNS]
        columns += self.posts if len(self.posts.rank) else ()
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
        # What is cached of the tasks still holds, except for the digest.
        replaced = "templates", "digest"
        vars(graph).update(
            {name: each for name, each in vars(self).items() if name not in replaced}
        )
        return graph

    def expanded(self) -> TaskGraph:
        """The graph with a task for each piece of its composite passes."""
        graph = expanded(self)
        return graph.checked() if self.is_checked else graph

    def to_networkx(self) -> DiGraph:
        """The tasks and their dependencies as a `networkx.DiGraph`, for your own analysis.

        Nodes are task numbers, with the fields of a `Task` as attributes; an edge has the
        `kind` "dependency" or, from each task to the next of a lane, "lane".

        >>> from bfpp.schedules import Layout, build_graph
        >>> graph = build_graph("1f1b", Layout(2, 2)).to_networkx()
        >>> graph.nodes[0]["operation"], graph.number_of_edges()
        ('FORWARD', 22)
        """
        import networkx  # slow to load

        result = networkx.DiGraph(schedule=self.schedule)
        for task in self.tasks():
            attributes = {**task._asdict(), "operation": task.operation.name}
            del attributes["number"], attributes["dependencies"]
            result.add_node(task.number, **attributes)
        ahead, behind = self.lane_neighbours
        result.add_edges_from(zip(ahead.tolist(), behind.tolist(), strict=True), kind="lane")
        waits = zip(self.dependencies.member.tolist(), self.dependent.tolist(), strict=True)
        result.add_edges_from(waits, kind="dependency")
        return result

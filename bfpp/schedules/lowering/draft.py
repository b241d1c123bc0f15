"""A task graph in the making: tasks with keys, dependencies by provisional number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import NONE, Groups, Integers, group_by
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.graph.lanes import lanes_of_tasks
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.operations.built_in import PHASES
from bfpp.schedules.operations.operations import OPERATIONS, operation_named
from bfpp.schedules.settings.sharding import Communication


class Tasks(NamedTuple):
    """Columns of some tasks of a draft; numbers stand for whole columns of them.

    `block` holds provisional numbers.
    """

    operation: npt.ArrayLike
    rank: npt.ArrayLike
    unit: npt.ArrayLike
    round: npt.ArrayLike
    microbatch: npt.ArrayLike = NONE
    peer: npt.ArrayLike = NONE
    weight_buffer: npt.ArrayLike = NONE
    gradient_buffer: npt.ArrayLike = NONE
    block: npt.ArrayLike = NONE


class Begins(NamedTuple):
    """Tasks, each with a compute step that it begins no earlier than."""

    task: Integers
    step: Integers


@dataclass
class Draft:
    """Tasks and dependencies collected by the passes, by provisional number.

    A block waits with its first task for all that its tasks wait for, and what waits for one
    of them waits for its last: its tasks begin and end as one.
    """

    layout: Layout
    communication: Communication
    size: int = 0
    tasks: list[tuple[int, Tasks]] = field(default_factory=list)
    edges: list[tuple[Integers, Integers]] = field(default_factory=list)
    begins: list[Begins] = field(default_factory=list)

    def add(self, count: int, tasks: Tasks) -> Integers:
        """Add `count` tasks; returns their provisional numbers."""
        numbers = np.arange(self.size, self.size + count, dtype=np.int32)
        self.size += count
        self.tasks.append((count, tasks))
        return numbers

    def depend(self, task: Integers, on: Integers) -> None:
        """Let each task start only after the one at its place in `on` has ended."""
        self.edges.append((task, on))

    def finish(self, name: str) -> tuple[TaskGraph, Begins]:
        """Number the tasks by their keys and lay out the columns; and what begins with steps."""
        phase = np.zeros(len(OPERATIONS), dtype=np.int64)
        for number, names in enumerate(PHASES):
            phase[[*map(operation_named, names)]] = number
        key = self._column("round").astype(np.int64) * len(PHASES)
        key += phase[self._column("operation")]
        old = np.argsort(key, kind="stable").astype(np.int32)
        del key
        new = np.empty_like(old)
        new[old] = np.arange(self.size, dtype=np.int32)
        block = self._column("block")
        columns: dict[str, Any] = {
            column: self._column(column)[old]
            for column in (
                "rank", "peer", "unit", "microbatch", "weight_buffer", "gradient_buffer",
            )
        }  # fmt: skip
        operation = self._column("operation")[old].astype(np.int8)
        lanes, lane, peer_lane = lanes_of_tasks(
            operation, columns["rank"], columns["peer"], self.communication
        )
        begins = np.concatenate([np.empty((2, 0), np.int32), *self.begins], axis=1)
        graph = TaskGraph(
            schedule=name,
            layout=self.layout,
            communication=self.communication,
            lanes=lanes,
            operation=operation,
            lane=lane,
            peer_lane=peer_lane,
            piece=np.full(self.size, NONE, dtype=np.int32),
            block=np.where(block == NONE, NONE, new[block])[old],
            dependencies=self._dependencies(new, block),
            **columns,
        )
        return graph, Begins(*new[begins])

    def _column(self, name: str) -> Integers:
        column = np.empty(self.size, dtype=np.int32)
        first = 0
        for count, tasks in self.tasks:
            column[first : first + count] = getattr(tasks, name)
            first += count
        return column

    def _dependencies(self, new: Integers, block: Integers) -> Groups:
        in_block = block != NONE
        first, last = np.where(in_block, [new[block], new[block + 1]], new)
        task = np.concatenate([first[task] for task, _ in self.edges])
        on = np.concatenate([last[on] for _, on in self.edges])
        if in_block.any():  # two tasks of a block may wait for the same
            task, on = np.unique(np.stack([task, on]), axis=1)
        return group_by(task, on, self.size)

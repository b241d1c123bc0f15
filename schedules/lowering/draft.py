"""A task graph in the making: tasks with keys, dependencies by provisional number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schedules.columns import NONE, Groups, Integers, group_by
from schedules.graph import Communication, Lane, LaneKind, TaskGraph
from schedules.layout import Layout
from schedules.steps import Operation

COMPUTE, TRANSFER, GATHER, REDUCE, OPTIMIZER = range(5)
PHASES = 5
"""The phases of a round, in their order."""


class Tasks(NamedTuple):
    """Columns of some tasks of a draft; numbers stand for whole columns of them."""

    operation: npt.ArrayLike
    rank: npt.ArrayLike
    stage: npt.ArrayLike
    round: npt.ArrayLike
    phase: int
    microbatch: npt.ArrayLike = NONE
    peer: npt.ArrayLike = NONE
    weight_buffer: npt.ArrayLike = NONE
    gradient_buffer: npt.ArrayLike = NONE


@dataclass
class Draft:
    """Tasks and dependencies collected by the passes, by provisional number."""

    layout: Layout
    communication: Communication
    size: int = 0
    tasks: list[tuple[int, Tasks]] = field(default_factory=list)
    edges: list[tuple[Integers, Integers]] = field(default_factory=list)

    def add(self, count: int, tasks: Tasks) -> Integers:
        """Add `count` tasks; returns their provisional numbers."""
        numbers = np.arange(self.size, self.size + count, dtype=np.int32)
        self.size += count
        self.tasks.append((count, tasks))
        return numbers

    def depend(self, task: Integers, on: Integers) -> None:
        """Let each task start only after the one beside it has ended."""
        self.edges.append((task, on))

    def finish(self, name: str) -> TaskGraph:
        """Number the tasks by their keys and lay out the columns."""
        key = self._column("round").astype(np.int64) * PHASES
        key += np.repeat(
            np.array([tasks.phase for _, tasks in self.tasks]),
            np.array([count for count, _ in self.tasks]),
        )
        old = np.argsort(key, kind="stable").astype(np.int32)
        del key
        new = np.empty_like(old)
        new[old] = np.arange(self.size, dtype=np.int32)
        columns = {
            column: self._column(column)[old]
            for column in (
                "rank", "peer", "stage", "microbatch", "weight_buffer", "gradient_buffer",
            )
        }  # fmt: skip
        operation = self._column("operation")[old].astype(np.int8)
        lanes, lane, peer_lane = _lanes(
            operation, columns["rank"], columns["peer"], self.communication
        )
        return TaskGraph(
            schedule=name,
            layout=self.layout,
            communication=self.communication,
            lanes=lanes,
            operation=operation,
            lane=lane,
            peer_lane=peer_lane,
            dependencies=self._dependencies(new),
            **columns,
        )

    def _column(self, name: str) -> Integers:
        column = np.empty(self.size, dtype=np.int32)
        first = 0
        for count, tasks in self.tasks:
            column[first : first + count] = getattr(tasks, name)
            first += count
        return column

    def _dependencies(self, new: Integers) -> Groups:
        task = np.concatenate([new[task] for task, _ in self.edges])
        on = np.concatenate([new[on] for _, on in self.edges])
        return group_by(task, on, self.size)


def _lanes(
    operation: npt.NDArray[np.int8], rank: Integers, peer: Integers, communication: Communication
) -> tuple[tuple[Lane, ...], Integers, Integers]:
    """The lanes in use, and each task's lane and, for transfers, lane at the receiver."""
    here = np.full(len(Operation), LaneKind.COMPUTE)
    there = np.full(len(Operation), LaneKind.COMPUTE)
    if communication.data_overlap:
        here[[Operation.GATHER, Operation.REDUCE]] = LaneKind.DATA
    if communication.pipeline_overlap:
        here[Operation.TRANSFER_ACTIVATIONS] = LaneKind.SEND_ACTIVATIONS
        there[Operation.TRANSFER_ACTIVATIONS] = LaneKind.RECEIVE_ACTIVATIONS
        here[Operation.TRANSFER_GRADIENTS] = LaneKind.SEND_GRADIENTS
        there[Operation.TRANSFER_GRADIENTS] = LaneKind.RECEIVE_GRADIENTS

    ranks = int(rank.max()) + 1
    code = np.arange(len(LaneKind) * ranks * ranks).reshape(ranks, len(LaneKind), ranks)
    is_channel = here[operation] >= LaneKind.SEND_ACTIVATIONS
    lane = code[rank, here[operation], np.where(is_channel, peer, 0)]
    crosses = peer != NONE
    back = np.where(is_channel, rank, 0)[crosses]
    peer_lane = np.full(len(rank), NONE, dtype=np.int32)
    used = np.zeros(code.size, dtype=bool)
    used[lane] = True
    received = code[peer[crosses], there[operation[crosses]], back]
    used[received] = True
    number = (np.cumsum(used) - 1).astype(np.int32)
    peer_lane[crosses] = number[received]
    lanes = tuple(
        Lane(int(rank), LaneKind(kind), int(peer) if kind >= 2 else NONE)
        for rank, kind, peer in np.argwhere(used.reshape(code.shape))
    )
    return lanes, number[lane], peer_lane

"""A task graph in the making: tasks with keys, dependencies by provisional number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import NONE, Groups, Integers, group_by
from bfpp.schedules.graph import Communication, Lane, LaneKind, TaskGraph
from bfpp.schedules.layout import Layout
from bfpp.schedules.steps import DATA, Operation

COMPUTE, TRANSFER, GATHER, REDUCE, NORM, OPTIMIZER = range(6)
PHASES = 6
"""The phases of a round, in their order."""

KINDS = tuple(LaneKind)


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
    here, there = _kinds(communication)
    ranks = int(rank.max()) + 1
    crosses = np.flatnonzero(peer != NONE)
    is_channel = here[operation] >= LaneKind.SEND_ACTIVATIONS
    sender, receiver = rank[crosses], peer[crosses]
    lane = _code(rank, here[operation], np.where(is_channel, peer, 0), ranks)
    back = np.where(is_channel[crosses], sender, 0)
    received = _code(receiver, there[operation[crosses]], back, ranks)

    used = np.zeros(ranks * len(LaneKind) * ranks, dtype=bool)
    used[lane] = True
    used[received] = True
    number = np.cumsum(used, dtype=np.int32) - 1
    peer_lane = np.full(len(rank), NONE, dtype=np.int32)
    peer_lane[crosses] = number[received]
    table = used.reshape(ranks, len(LaneKind), ranks)
    lanes = tuple(
        Lane(rank, KINDS[kind], peer if kind >= LaneKind.SEND_ACTIVATIONS else NONE)
        for rank, kind, peer in np.argwhere(table).tolist()
    )
    return lanes, number[lane], peer_lane


def _kinds(communication: Communication) -> tuple[Integers, Integers]:
    """For each operation, the kind of its lane and of its lane at a receiver."""
    here = np.full(len(Operation), LaneKind.COMPUTE, dtype=np.int32)
    there = here.copy()
    if communication.data_overlap:
        here[[*DATA]] = LaneKind.DATA
    if communication.pipeline_overlap:
        here[Operation.TRANSFER_ACTIVATIONS] = LaneKind.SEND_ACTIVATIONS
        there[Operation.TRANSFER_ACTIVATIONS] = LaneKind.RECEIVE_ACTIVATIONS
        here[Operation.TRANSFER_GRADIENTS] = LaneKind.SEND_GRADIENTS
        there[Operation.TRANSFER_GRADIENTS] = LaneKind.RECEIVE_GRADIENTS
    return here, there


def _code(rank: Integers, kind: Integers, peer: Integers, ranks: int) -> Integers:
    """A lane's place in a table over ranks, kinds and peers."""
    code: Integers = (rank * len(LaneKind) + kind) * ranks + peer
    return code

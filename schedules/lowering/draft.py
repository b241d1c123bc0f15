"""A task graph in the making: tasks with keys, dependencies by provisional number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import NONE, Groups, Integers, group_by
from bfpp.schedules.communication import Communication
from bfpp.schedules.graph import TaskGraph
from bfpp.schedules.layout import Layout
from bfpp.schedules.operations import OPERATIONS
from bfpp.schedules.streams import STREAMS
from bfpp.schedules.tasks import Lane

(
    COMPUTE, TRANSFER, OFFLOAD, RELOAD, GATHER, REDUCE, ALL_REDUCE, TIED, NORM, OPTIMIZER,
) = range(10)  # fmt: skip
PHASES = 10
"""The phases of a round, in their order."""


class Tasks(NamedTuple):
    """Columns of some tasks of a draft; numbers stand for whole columns of them.

    `block` holds provisional numbers.
    """

    operation: npt.ArrayLike
    rank: npt.ArrayLike
    unit: npt.ArrayLike
    round: npt.ArrayLike
    phase: int
    microbatch: npt.ArrayLike = NONE
    peer: npt.ArrayLike = NONE
    weight_buffer: npt.ArrayLike = NONE
    gradient_buffer: npt.ArrayLike = NONE
    block: npt.ArrayLike = NONE


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

    def add(self, count: int, tasks: Tasks) -> Integers:
        """Add `count` tasks; returns their provisional numbers."""
        numbers = np.arange(self.size, self.size + count, dtype=np.int32)
        self.size += count
        self.tasks.append((count, tasks))
        return numbers

    def depend(self, task: Integers, on: Integers) -> None:
        """Let each task start only after the one at its place in `on` has ended."""
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
        return TaskGraph(
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


def lanes_of_tasks(
    operation: npt.NDArray[np.int8], rank: Integers, peer: Integers, communication: Communication
) -> tuple[tuple[Lane, ...], Integers, Integers]:
    """The lanes in use, and each task's lane and, for transfers, lane at the receiver."""
    streams = [each.streams(communication) for each in OPERATIONS]
    here, there = np.array([[*map(STREAMS.index, each)] for each in streams], dtype=np.int32).T
    by_peer = np.array([bool(stream.toward) for stream in STREAMS])
    ranks = int(rank.max()) + 1
    crosses = np.flatnonzero(peer != NONE)
    sender, receiver = rank[crosses], peer[crosses]
    stream, arrives_on = here[operation], there[operation[crosses]]
    lane = _code(rank, stream, np.where(by_peer[stream], peer, 0), ranks)
    received = _code(receiver, arrives_on, np.where(by_peer[arrives_on], sender, 0), ranks)

    used = np.zeros(ranks * len(STREAMS) * ranks, dtype=bool)
    used[lane] = True
    used[received] = True
    number = np.cumsum(used, dtype=np.int32) - 1
    peer_lane = np.full(len(rank), NONE, dtype=np.int32)
    peer_lane[crosses] = number[received]
    table = used.reshape(ranks, len(STREAMS), ranks)
    lanes = tuple(
        Lane(rank, STREAMS[stream], peer if by_peer[stream] else NONE)
        for rank, stream, peer in np.argwhere(table).tolist()
    )
    return lanes, number[lane], peer_lane


def _code(rank: Integers, stream: Integers, peer: Integers, ranks: int) -> Integers:
    """A lane's place in a table over ranks, streams and peers."""
    code: Integers = (rank * len(STREAMS) + stream) * ranks + peer
    return code

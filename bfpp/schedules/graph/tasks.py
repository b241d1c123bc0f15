"""A task of a graph, as a view of its columns."""

from __future__ import annotations

from typing import NamedTuple

from bfpp.schedules.columns import NONE
from bfpp.schedules.layout.layout import unit_name
from bfpp.schedules.operations.operations import Operation


class Task(NamedTuple):
    """One task, as a view of the columns.

    `peer` and `peer_lane` are those of a transfer's receiver; `rank` and `lane`
    those of its sender. Of a gather or a reduction they are those of a unit's second copy,
    and of its first one. `called` is what the operation is with the graph's communication: an
    all-reduce or a reduce-scatter. `weight_buffer` is where a gather puts weights and a
    compute step finds them; `gradient_buffer` is where a backward pass adds
    gradients and a reduction finds them; both number the buffers of a rank. `piece` is
    which one of its pass it is (`graph.composite_tasks`). `block` is the number of the first task
    of its block.
    """

    number: int
    operation: Operation
    called: str
    rank: int
    peer: int
    stage: int
    unit: int
    microbatch: int
    lane: int
    peer_lane: int
    weight_buffer: int
    gradient_buffer: int
    piece: int
    block: int
    dependencies: tuple[int, ...]

    def __str__(self) -> str:
        return f"#{self.number} {self.words}"

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of its ends: one, or two."""
        return (self.rank,) if self.peer == NONE else (self.rank, self.peer)

    @property
    def words(self) -> str:
        """The task in words: operation, unit, micro-batch, ranks."""
        words = [self.called]
        if self.unit != NONE:
            words.append(f"of {unit_name(self.stage, self.unit)}")
        if self.microbatch != NONE:
            words.append(f"micro-batch {self.microbatch}")
        if self.peer == NONE:
            words.append(f"on rank {self.rank}")
        elif self.operation.row.carries:
            words.append(f"from rank {self.rank} to {self.peer}")
        else:
            words.append(f"on ranks {self.rank} and {self.peer}")
        return " ".join(words)

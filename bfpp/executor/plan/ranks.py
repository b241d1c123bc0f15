"""Ranks of processes and pipelines, and the groups that run a task together.

There is a pipeline for each tensor-parallel rank of each replica; all of them run the same graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from bfpp.executor.settings import Training
from bfpp.schedules import Operation, Sharding, TaskGraph
from bfpp.schedules.operations.row import Group


@dataclass(frozen=True, eq=False)
class Ranks(Training):
    """The ranks of a step's graph, and the pipelines that run it."""

    graph: TaskGraph

    @property
    def is_sharded(self) -> bool:
        """True if the training state is sharded over replicas."""
        return self.graph.communication.sharding is not Sharding.NONE

    @property
    def shares(self) -> int:
        """The number of shares of the training state, over replicas and copies of stages."""
        return len(self.group_of(0, 0)) if self.is_sharded else 1

    def share_of(self, rank: int, pipeline: int) -> int:
        """The number of the share that a rank of a pipeline keeps."""
        group = self.group_of(rank, pipeline)
        return group.index(self.process(rank, pipeline)) if self.is_sharded else 0

    def group_of(self, rank: int, pipeline: int) -> list[int]:
        """The processes that reduce the gradients of a rank's stages together, those of copies too.

        They are all that keep the same part of its stages or, if there are groups of replicas,
        all of one group.
        """
        ranks = self.graph.layout.sharing(rank)
        pipelines = self.pipelines_with(pipeline, Operation.REDUCE)
        return [self.process(each, other) for each in ranks for other in pipelines]

    @property
    def pipelines(self) -> int:
        """The number of pipelines: one for each tensor-parallel rank of each replica."""
        return self.dp * self.tp

    def pipelines_with(self, pipeline: int, operation: Operation) -> list[int]:
        """The pipelines of a pipeline's group for an operation, itself included."""
        return next(group for group in self.together(operation) if pipeline in group)

    def together(self, operation: Operation) -> list[list[int]]:
        """The groups of pipelines that run an operation together.

        Replicas do so for each tensor-parallel rank apart, but that a norm is of all its ranks.
        """
        groups = []
        for replicas in self._replicas_together(operation):
            parts = [[each * self.tp + rank for each in replicas] for rank in range(self.tp)]
            groups += [[*chain(*parts)]] if operation is Operation.NORM else parts
        return groups

    def _replicas_together(self, operation: Operation) -> list[list[int]]:
        replicas = [*range(self.dp)]
        sharing = self.dp // self.dp_replicate
        match operation.group(self.graph.communication):
            case Group.DP:
                return [replicas]
            case Group.DP_SHARD:
                return [replicas[first : first + sharing] for first in replicas[::sharing]]
            case Group.DP_REPLICATE:
                return [replicas[first::sharing] for first in replicas[:sharing]]
        return [[replica] for replica in replicas]

    def process(self, rank: int, pipeline: int) -> int:
        """The number of the process of a pipeline's rank, where each has one.

        So tensor-parallel ranks are next to each other, then replicas, then pipeline ranks.
        """
        return rank * self.pipelines + pipeline

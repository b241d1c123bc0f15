"""Which process is which rank of which pipeline, and who does a task together.

There is a pipeline for each tensor-parallel rank of each replica; all of them run the same graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from bfpp.executor.settings import Training
from bfpp.schedules import Operation, Sharding, TaskGraph
from bfpp.schedules.operations import Group


@dataclass(frozen=True, eq=False)
class Ranks(Training):
    """Those of a step's graph, and how many pipelines run it."""

    graph: TaskGraph

    @property
    def is_sharded(self) -> bool:
        """Whether replicas keep a share of the training state each."""
        return self.graph.communication.sharding is not Sharding.NONE

    @property
    def shares(self) -> int:
        """In how many shares replicas, and copies of stages, keep the training state."""
        return len(self.group_of(0, 0)) if self.is_sharded else 1

    def share_of(self, rank: int, pipeline: int) -> int:
        """Which share a rank of a pipeline keeps."""
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
        """How many there are: one for each tensor-parallel rank of each replica."""
        return self.dp * self.tp

    def pipelines_with(self, pipeline: int, operation: Operation) -> list[int]:
        """Those that a pipeline does such a task with, itself among them."""
        return next(group for group in self.together(operation) if pipeline in group)

    def together(self, operation: Operation) -> list[list[int]]:
        """All pipelines: in one list those that do such a task together.

        Replicas do so for each tensor-parallel rank apart, but that a norm is of all its ranks.
        """
        found = []
        for replicas in self._replicas_together(operation):
            parts = [[each * self.tp + rank for each in replicas] for rank in range(self.tp)]
            found += [[*chain(*parts)]] if operation is Operation.NORM else parts
        return found

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

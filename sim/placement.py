"""Where the devices of each group are: on one node, or across several.

Devices are numbered as in Megatron-LM, tensor-parallel rank innermost, then
data-parallel, then pipeline-parallel: (pipeline N_DP + data) N_TP + tensor.
Nodes take consecutive numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import Flags, Integers


@dataclass(frozen=True)
class DevicePlacement:
    """The devices of a three-dimensional grid on nodes of `gpus_per_node`."""

    pipeline_parallel: int
    data_parallel: int
    tensor_parallel: int
    gpus_per_node: int

    def __post_init__(self) -> None:
        if self.gpus_per_node % self.tensor_parallel:
            raise InvalidConfiguration(
                "tensor_parallel",
                f"groups of {self.tensor_parallel} do not fit in nodes of "
                f"{self.gpus_per_node} devices",
            )

    def device(self, pipeline: int, data: int, tensor: int) -> int:
        """The number of a device."""
        return (pipeline * self.data_parallel + data) * self.tensor_parallel + tensor

    def _nodes(self) -> Integers:
        """For each pipeline and data rank, the node of its tensor-parallel group."""
        groups = np.arange(self.pipeline_parallel * self.data_parallel, dtype=np.int32)
        nodes = groups * self.tensor_parallel // self.gpus_per_node
        return nodes.reshape(self.pipeline_parallel, self.data_parallel)

    def crosses_nodes(self) -> Flags:
        """For each two pipeline ranks, whether some pair of theirs is on two nodes.

        Where some pairs are and some are not, the step waits for those that are.
        """
        _, alike = np.unique(self._nodes(), axis=0, return_inverse=True)
        crosses: Flags = alike.reshape(-1, 1) != alike.reshape(1, -1)
        return crosses

    def data_group_nodes(self) -> Integers:
        """For each pipeline rank, over how many nodes its data-parallel groups reach."""
        counts = [len(np.unique(nodes)) for nodes in self._nodes()]
        return np.array(counts, dtype=np.int32)

    def data_members_per_node(self) -> Integers:
        """For each pipeline rank, the fewest members of such a group on one of its nodes."""
        counts = [np.unique(nodes, return_counts=True)[1].min() for nodes in self._nodes()]
        return np.array(counts, dtype=np.int32)

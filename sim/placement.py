"""Where the devices of each group are: on one node, or across several.

Devices are numbered as in Megatron-LM, tensor-parallel rank innermost, then
data-parallel, then pipeline-parallel: (pipeline N_DP + data) N_TP + tensor.
Nodes take consecutive numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bfpp.schedules import Degrees, InvalidConfiguration
from bfpp.schedules.columns import Flags, Integers

PLACEMENTS = 256
"""How many placements' nodes are remembered."""


@dataclass(frozen=True)
class DevicePlacement:
    """The devices of a grid on nodes of `gpus_per_node`.

    A tensor-parallel group has a share of a node, or whole nodes.
    `sharing` lists, for each pipeline rank, those that hold copies of its stages, itself
    among them; without it, each is alone.
    """

    degrees: Degrees
    gpus_per_node: int
    sharing: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        if self.gpus_per_node % self.degrees.tp and self.degrees.tp % self.gpus_per_node:
            raise InvalidConfiguration(
                "tp",
                f"groups of {self.degrees.tp} do not fit in nodes of {self.gpus_per_node} devices",
            )

    def device(self, pipeline: int, data: int, tensor: int) -> int:
        """The number of a device."""
        return (pipeline * self.degrees.dp + data) * self.degrees.tp + tensor

    def _nodes(self) -> Integers:
        """For each pipeline and data rank, the (first) node of its tensor-parallel group."""
        degrees = self.degrees
        groups = np.arange(degrees.pp * degrees.dp, dtype=np.int32)
        nodes = groups * degrees.tp // self.gpus_per_node
        return nodes.reshape(degrees.pp, degrees.dp)

    @lru_cache(PLACEMENTS)  # noqa: B019 - placements are values
    def crosses_nodes(self) -> Flags:
        """For each two pipeline ranks, whether some pair of theirs is on two nodes.

        Where some pairs are and some are not, the step waits for those that are.
        """
        _, alike = np.unique(self._nodes(), axis=0, return_inverse=True)
        crosses: Flags = alike.reshape(-1, 1) != alike.reshape(1, -1)
        return crosses

    def _group_nodes(self) -> list[Integers]:
        """For each pipeline rank, the nodes of those who keep its stages: replicas and copies."""
        sharing = self.sharing or tuple((rank,) for rank in range(self.degrees.pp))
        return [self._nodes()[list(ranks)].ravel() for ranks in sharing]

    @property
    def data_members(self) -> int:
        """Of a data-parallel group: replicas, and copies of stages."""
        return self.degrees.dp * (len(self.sharing[0]) if self.sharing else 1)

    @lru_cache(PLACEMENTS)  # noqa: B019
    def data_group_nodes(self) -> Integers:
        """For each pipeline rank, over how many nodes its data-parallel groups reach."""
        counts = [len(np.unique(nodes)) for nodes in self._group_nodes()]
        return np.array(counts, dtype=np.int32)

    @lru_cache(PLACEMENTS)  # noqa: B019
    def data_members_per_node(self) -> Integers:
        """For each pipeline rank, the fewest members of such a group on one of its nodes."""
        counts = [np.unique(nodes, return_counts=True)[1].min() for nodes in self._group_nodes()]
        return np.array(counts, dtype=np.int32)

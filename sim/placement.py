"""Where the devices of each group are: on one node, or across several.

Devices are numbered as in Megatron-LM, tensor-parallel rank innermost, then
context-parallel, then data-parallel, then pipeline-parallel:
((pipeline N_DP + data) N_CP + context) N_TP + tensor. Nodes take consecutive
numbers. Those that keep the same parameters are all of a pipeline rank's that are
a `stride` apart: N_TP for what all layers have, N_EP for routed experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bfpp.schedules import Degrees, InvalidConfiguration
from bfpp.schedules.columns import Flags, Integers

PLACEMENTS = 256
"""How many placements' nodes are remembered."""


@dataclass(frozen=True)
class DevicePlacement:
    """The devices of a grid on nodes of `gpus_per_node`.

    A group inside a pass (tensor-, context- or expert-parallel) has a share of a node, or whole
    nodes.
    `sharing` lists, for each pipeline rank, those that hold copies of its stages, itself
    among them; without it, each is alone.
    """

    degrees: Degrees
    gpus_per_node: int
    sharing: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        degrees = self.degrees
        groups = {"tp": degrees.tp, "cp": degrees.tp * degrees.cp, "ep": degrees.ep}
        for name, devices in groups.items():
            if self.gpus_per_node % devices and devices % self.gpus_per_node:
                raise InvalidConfiguration(
                    name,
                    f"groups of {devices} do not fit in nodes of {self.gpus_per_node} devices",
                )

    def device(self, pipeline: int, data: int, tensor: int, context: int = 0) -> int:
        """The number of a device."""
        degrees = self.degrees
        of_rank = (pipeline * degrees.dp + data) * degrees.cp + context
        return of_rank * degrees.tp + tensor

    def _nodes(self, stride: int) -> Integers:
        """For each pipeline rank, the nodes of every `stride`-th of its devices."""
        firsts = np.arange(0, self.degrees.devices, stride, dtype=np.int32)
        return (firsts // self.gpus_per_node).reshape(self.degrees.pp, -1)

    @lru_cache(PLACEMENTS)  # noqa: B019 - placements are values
    def crosses_nodes(self) -> Flags:
        """For each two pipeline ranks, whether some pair of theirs is on two nodes.

        Where some pairs are and some are not, the step waits for those that are.
        """
        _, alike = np.unique(self._nodes(self.degrees.tp), axis=0, return_inverse=True)
        crosses: Flags = alike.reshape(-1, 1) != alike.reshape(1, -1)
        return crosses

    def _group_nodes(self, stride: int) -> list[Integers]:
        """For each pipeline rank, the nodes of those who keep its stages: replicas and copies."""
        sharing = self.sharing or tuple((rank,) for rank in range(self.degrees.pp))
        nodes = self._nodes(stride)
        return [nodes[list(ranks)].ravel() for ranks in sharing]

    @lru_cache(PLACEMENTS)  # noqa: B019
    def data_group(self, stride: int) -> DataGroup:
        """Those that keep the same parameters: replicas, and copies of stages."""
        on_nodes = [np.unique(each, return_counts=True)[1] for each in self._group_nodes(stride)]
        copies = len(self.sharing[0]) if self.sharing else 1
        return DataGroup(
            self.degrees.devices // (self.degrees.pp * stride) * copies,
            np.array([len(counts) for counts in on_nodes], dtype=np.int32),
            np.array([counts.min() for counts in on_nodes], dtype=np.int32),
        )


class DataGroup(NamedTuple):
    """A data-parallel group.

    Its members, and for each pipeline rank over how many nodes it reaches and the fewest members
    that it has on one of them.
    """

    members: int
    nodes: Integers
    per_node: Integers

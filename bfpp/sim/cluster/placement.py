"""Placement of each group's devices: on one node, or across levels of the network.

Devices are numbered as in Megatron-LM, tensor-parallel rank innermost, then
context-parallel, then data-parallel, then pipeline-parallel:
((pipeline N_DP + data) N_CP + context) N_TP + tensor. Nodes take consecutive
numbers, and so do the data-parallel replicas that shard their state together. Those that
keep the same parameters are all of a pipeline rank's that are a `stride` apart: N_TP for
what all layers have, N_EP for routed experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bfpp.schedules import Degrees, InvalidConfiguration
from bfpp.schedules.columns import Integers
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.group_location import GroupPlace

PLACEMENTS = 256
"""Number of placements whose nodes are cached."""


@dataclass(frozen=True)
class DevicePlacement:
    """The devices of a grid on a network whose levels, except for the last, join `sizes` of them.

    A group inside a pass (tensor-, context- or expert-parallel) has a share of what the innermost
    level joins, or several of these as wholes.
    `sharing` lists, for each pipeline rank, those that hold copies of its stages, itself
    among them; without it, each is alone.
    """

    degrees: Degrees
    sizes: tuple[int, ...]
    sharing: tuple[tuple[int, ...], ...] | None = None

    @classmethod
    def on(
        cls,
        cluster: Cluster,
        degrees: Degrees,
        sharing: tuple[tuple[int, ...], ...] | None = None,
    ) -> DevicePlacement:
        """Placement on the nodes of a cluster."""
        most = cluster.levels[-1].size or degrees.devices
        if degrees.devices > most:
            raise InvalidConfiguration(
                "cluster", f"{cluster.name} has {most} GPUs, not {degrees.devices}"
            )
        groups = _groups_of_passes(degrees).values()
        return cls(degrees, cluster.sizes_used(degrees.devices, tuple(groups)), sharing)

    def __post_init__(self) -> None:
        for size in self.sizes[:1]:
            for name, devices in _groups_of_passes(self.degrees).items():
                if size % devices and devices % size:
                    raise InvalidConfiguration(
                        name, f"groups of {devices} do not fit in nodes of {size} devices"
                    )

    def device(self, pipeline: int, data: int, tensor: int, context: int = 0) -> int:
        """The number of a device."""
        degrees = self.degrees
        of_rank = (pipeline * degrees.dp + data) * degrees.cp + context
        return of_rank * degrees.tp + tensor

    def _units(self, stride: int, size: int) -> Integers:
        """For each pipeline rank, the units of `size` devices that every `stride`-th one is in."""
        firsts = np.arange(0, self.degrees.devices, stride, dtype=np.int32)
        return (firsts // size).reshape(self.degrees.pp, -1)

    @lru_cache(PLACEMENTS)  # noqa: B019 - placements are values
    def levels_between(self) -> Integers:
        """For each two pipeline ranks, the outermost level that some pair of theirs crosses.

        Where some pairs do and some do not, the step waits for those that do.
        """
        levels = np.zeros((self.degrees.pp, self.degrees.pp), dtype=np.int32)
        for size in self.sizes:
            alike: dict[bytes, int] = {}  # a number for ranks in the same units
            rows = map(bytes, self._units(self.degrees.tp, size))
            number = np.array([alike.setdefault(row, len(alike)) for row in rows])
            levels += number[:, None] != number
        return levels

    @lru_cache(PLACEMENTS)  # noqa: B019
    def data_groups(self, stride: int) -> tuple[GroupPlace, ...]:
        """For each pipeline rank, those that shard the same parameters: replicas, and copies."""
        degrees = self.degrees
        sharing = self.sharing or tuple((rank,) for rank in range(degrees.pp))
        members = degrees.dp_shard * degrees.cp * degrees.tp // stride * len(sharing[0])
        of_levels = self._replicas(stride)
        return tuple(
            _worst_place(members, [np.concatenate(each[list(ranks)], axis=1) for each in of_levels])
            for ranks in sharing
        )

    @lru_cache(PLACEMENTS)  # noqa: B019
    def replica_groups(self, stride: int) -> tuple[GroupPlace, ...]:
        """For each pipeline rank, the devices of different groups that keep the same share."""
        of_levels = self._replicas(stride)
        return tuple(
            _worst_place(self.degrees.dp_replicate, [each[rank].T for each in of_levels])
            for rank in range(self.degrees.pp)
        )

    def pair(self, rank: int, peer: int) -> GroupPlace:
        """Location of the pair of matching devices of two pipeline ranks that is farthest apart."""
        level = int(self.levels_between()[rank, peer])
        units = tuple(2 if number < level else 1 for number in range(len(self.sizes)))
        return GroupPlace.on(2, units, tuple(2 // count for count in units))

    def _replicas(self, stride: int) -> list[Integers]:
        """For each level, the units by pipeline rank, group of replicas, and member of it."""
        shape = self.degrees.pp, self.degrees.dp_replicate, -1
        return [self._units(stride, size).reshape(shape) for size in self.sizes]


def _worst_place(members: int, of_levels: list[Integers]) -> GroupPlace:
    """The worst of some groups, which the others wait for; each is a row: its members' units."""
    units, fewest = [], []
    for each in of_levels:
        begins = np.ones(each.shape, dtype=bool)
        begins[:, 1:] = each[:, 1:] != each[:, :-1]
        units.append(int(begins.sum(axis=1).max()))
        fewest.append(int(np.diff(np.append(np.flatnonzero(begins), each.size)).min()))
    return GroupPlace.on(members, tuple(units), tuple(fewest))


def _groups_of_passes(degrees: Degrees) -> dict[str, int]:
    """The devices in each kind of groups whose collectives are inside passes."""
    return {"tp": degrees.tp, "cp": degrees.tp * degrees.cp, "ep": degrees.ep}

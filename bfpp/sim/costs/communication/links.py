"""Seconds, bytes and ports of communication, and the compute that it slows while it overlaps.

Theory of operation. A task's load is a latency, then bytes through ports
(`bfpp.sim.costs.communication.routes`); the engine shares ports between the flows of an instant. A
port's bandwidth is that of transfers, and a ring moves as many more bytes as it is slower.

- A gather or reduction is a collective over the rank's data-parallel group (with HSDP, its sharding
  group) as it is placed on the network, and one over that of its experts after it. The all-reduce
  of HSDP is over those that keep the same share, and of that share. It uses its own rank's ports of
  the level that limits it: where g members share a node, it crosses to the next node once for all
  of them, with g shares of the network. The all-reduce of a stage with two copies spans both; it
  leaves by the ports of the first one's rank and enters by the second's. So does the all-reduce
  between the first and the last unit's ranks.
- A step that receives from another rank also gathers the shares that each tensor-parallel device
  received.
- A transfer that blocks lengthens the step that receives it and takes no time on its lane, so that
  a rank's sends and receives of one moment are under way together. One that overlaps slows the
  compute at its two ends, by a share of its time.
- A gather that overlaps slows the pass that waits for it, a reduction the one that it waits for.
  Each runs in parallel with passes of the units next to these, which are as long.

Rejected, for larger errors in cross-validation (docs/costs.md): a blocking transfer that costs the
same between groups of any size, and gathers and reductions that slow compute as transfers do. A
fitted latency of overlapped transfers changed nothing (0.3 +- 0.5 ms).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from bfpp.core.prices import find_loads, hand_over
from bfpp.schedules import TaskGraph
from bfpp.schedules.columns import Integers, Seconds
from bfpp.schedules.graph.task_kinds import SomeKinds
from bfpp.schedules.operations.operations import OPERATIONS, Operation, transfers
from bfpp.sim.cluster.cluster import Cluster
from bfpp.sim.cluster.group_location import GroupPlace
from bfpp.sim.cluster.software_profiles import Implementation
from bfpp.sim.costs.communication.collectives import collective_seconds, options_at
from bfpp.sim.costs.communication.routes import Routes
from bfpp.sim.engines.caching import once
from bfpp.sim.engines.cost_model import Costs, Load
from bfpp.sim.models.unit_layers import Matrix
from bfpp.sim.operators.operators import Collective, Way


class Shared(NamedTuple):
    """State that devices keep, each all of it or a share: a row for each stride between them.

    `parameters` on one device are in columns over units. For each pipeline rank, `place` is the
    number of its group's place among `places`.
    """

    strides: tuple[int, ...]
    parameters: Matrix
    place: Integers
    places: tuple[GroupPlace, ...]

    @classmethod
    def of(
        cls, parameters: Mapping[int, Seconds], groups: Sequence[Sequence[GroupPlace]]
    ) -> Shared:
        """By the parameters of each stride, and the places of pipeline ranks' groups."""
        places = tuple(dict.fromkeys(chain.from_iterable(groups)))
        number = [[places.index(place) for place in of_ranks] for of_ranks in groups]
        columns = np.array(list(parameters.values())), np.array(number, dtype=np.int32)
        return cls(tuple(parameters), *columns, places)


class Exchanged(NamedTuple):
    """Data-parallel exchanges: their groups, bytes for each parameter, and the collective.

    The bytes are one number, or one for each unit.
    """

    shared: Shared
    sizes: Seconds | float
    way: Way


class Beside(NamedTuple):
    """Costs of kinds of tasks in parallel with others.

    `received` and `sent` are the seconds by which communication lengthens the step that waits for
    it, and the one that it waits for.
    """

    costs: Costs
    received: Seconds
    sent: Seconds

    @property
    def columns(self) -> tuple[Seconds, Seconds, Integers, Seconds, Seconds]:
        """All that is known of each kind, as loops have it."""
        return *self.costs.columns, self.received, self.sent


@dataclass(frozen=True, eq=False)
class Links:
    """The links that the groups of a configuration cross.

    `parameters` are those of each unit on one device, by the stride of those that keep the same.
    """

    routes: Routes
    parameters: Mapping[int, Seconds]

    def transfers(self, graph: TaskGraph, tasks: Integers, size: float) -> Load:
        """The load of transfers of hidden states of `size` bytes, over all devices of a group."""
        degrees, (latency, ports) = self.routes.placement.degrees, self.routes.of_transfers
        route = graph.rank.take(tasks) * degrees.pp + graph.peer.take(tasks)
        return Load(latency.take(route), size / degrees.tp, ports.take(route, axis=0))

    def collectives(
        self, rank: Integers, unit: Integers, peer: Integers, exchanged: Exchanged
    ) -> Load:
        """The load of collectives of data-parallel groups.

        A group of one has nobody to communicate with. Those of one task follow each other, on the
        ports of the outermost level that limits one of them.
        """
        shared, way, ends = exchanged.shared, exchanged.way, (rank, np.where(peer < 0, rank, peer))
        sizes = (exchanged.sizes * shared.parameters).take(unit, axis=1)
        return self._loads(way, sizes, shared.place.take(rank, axis=1), shared.places, ends)

    def between_ends(self, graph: TaskGraph, tasks: Integers, size: float) -> Load:
        """The load of all-reduces of `size` bytes between devices of two ranks."""
        rank, peer = ends = graph.rank.take(tasks), graph.peer.take(tasks)
        pairs = zip(rank.tolist(), peer.tolist(), strict=True)
        places = tuple(self.routes.placement.pair(*pair) for pair in pairs)
        sizes, place = np.full((1, len(tasks)), size), np.arange(len(tasks), dtype=np.int32)
        return self._loads(Way.ALL_REDUCE, sizes, place[None], places, ends)

    def _loads(
        self,
        way: Way,
        sizes: Matrix,
        place: Integers,
        places: tuple[GroupPlace, ...],
        ends: tuple[Integers, Integers],
    ) -> Load:
        """The load of tasks with a collective for each row of `sizes`, from ranks to their peers.

        Each row has the number of the `place` where those of a task are.
        """
        routes, tasks = self.routes, sizes.shape[1]
        latency, moved = np.empty((2, tasks))
        ports = np.empty((tasks, routes.width), dtype=np.int32)
        find_loads(
            sizes,
            place,
            options_at(routes.cluster, way, *places),
            routes.rates,
            ends,
            routes.ports_of_levels,
            latency,
            moved,
            ports,
        )
        return Load(latency, moved, ports)

    def beside_compute(
        self, kinds: SomeKinds, alone: Costs, *, overlap: bool, gathered: float = 0.0
    ) -> Beside:
        """Costs of kinds of tasks in parallel with compute, from their costs `alone`.

        Their communication may `overlap` with compute, or not. A step that receives also gathers
        `gathered` bytes, the shares of its tensor-parallel group.
        """
        routes, implementation = self.routes, self.routes.implementation
        seconds, moved = alone.seconds.copy(), alone.bytes.copy()
        beside = Costs(seconds, moved, alone.ports, alone.bandwidth)
        slowdowns = _slowdowns(implementation, len(OPERATIONS))
        received, sent = slowdowns.take(kinds.operation, axis=1) * overlap
        hand_over(
            kinds.is_transfer,
            implementation.blocking_transfers and overlap,
            collecting_seconds(routes.cluster, routes.placement.degrees.tp, gathered),
            beside.columns,
            beside.bandwidth,
            received,
            sent,
        )
        return Beside(beside, received, sent)

    @cached_property
    def shared(self) -> Shared:
        """State that devices keep, each all of it or a share."""
        return Shared.of(
            self.parameters, [*map(self.routes.placement.data_groups, self.parameters)]
        )

    @cached_property
    def replicated(self) -> Shared:
        """The shares of it: a device of each group of replicas keeps one."""
        shares = {
            stride: parameters / self.routes.placement.data_groups(stride)[0].members
            for stride, parameters in self.parameters.items()
        }
        return Shared.of(shares, [*map(self.routes.placement.replica_groups, shares)])


@once
def _slowdowns(implementation: Implementation, operations: int) -> Seconds:
    """Shares of its time by which overlapped communication of each operation lengthens others.

    The step that waits for it, and the one that it waits for.
    """
    waiting, awaited = shares = np.zeros((2, operations))
    of_transfers = list(transfers())
    if implementation.blocking_transfers:
        waiting[of_transfers] = 1.0
    else:
        waiting[of_transfers] = awaited[of_transfers] = implementation.overlap_slowdown
    waiting[Operation.GATHER] = implementation.collective_slowdown
    awaited[Operation.REDUCE] = implementation.collective_slowdown
    return shares


@once
def collecting_seconds(cluster: Cluster, tp: int, size: float) -> float:
    """Seconds in which a tensor-parallel group gathers `size` bytes, if there are any."""
    place = GroupPlace.of(tp, 1, cluster.levels)
    return size and collective_seconds(Collective(Way.ALL_GATHER, size), place, cluster)

"""A training step while its tasks are priced: on its devices, and as their hosts see it.

Rules:

- A compute step takes the seconds of `bfpp.sim.costs.units.seconds`, on every device of a
  tensor-parallel group alike, and longer for the communication that it overlaps.
- Transfers, gathers and reductions are those of `bfpp.sim.costs.communication.links`.
- The optimizer's update moves the rank's share of the state through memory. Muon makes matrices of
  momentum orthogonal before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bfpp.schedules import InvalidConfiguration, Layout, Sharding, TaskGraph
from bfpp.schedules.columns import Integers, Seconds
from bfpp.schedules.operations.operations import OPERATIONS, Operation
from bfpp.schedules.operations.streams import EXPERTS
from bfpp.sim.cluster.software_profiles import ParameterBytes
from bfpp.sim.costs.communication.links import Exchanged, Links
from bfpp.sim.costs.model_on_cluster import ModelOnCluster
from bfpp.sim.costs.units.muon import orthogonalising_seconds
from bfpp.sim.costs.units.offloading import host_copy_seconds
from bfpp.sim.costs.units.seconds import UnitSeconds, exchange_seconds, parts
from bfpp.sim.engines.caching import of_any_size, once_for_stages
from bfpp.sim.engines.cost_model import Load, narrowest
from bfpp.sim.operators.muon import NUMBER
from bfpp.sim.operators.operators import Way


@dataclass(frozen=True, eq=False)
class PhysicalStep:
    """A training step on a cluster: loads of its tasks, from which `PRICES` makes costs."""

    physical: ModelOnCluster
    graph: TaskGraph

    def __post_init__(self) -> None:
        if self.graph.communication.hybrid != self.physical.degrees.is_hybrid:
            groups = self.physical.degrees.dp_replicate
            raise InvalidConfiguration("dp_replicate", f"the task graph is not for {groups} groups")
        model = self.physical.model
        if self.graph.communication.tied_embeddings and not model.tied_embeddings:
            reason = f"{model.name}'s output layer has weights of its own"
            raise InvalidConfiguration("tied_embeddings", reason)

    @cached_property
    def links(self) -> Links:
        """The links that communication crosses."""
        return self.physical.links(self.graph.layout)

    @property
    def parameter_bytes(self) -> ParameterBytes:
        """Bytes kept of each parameter."""
        return self.physical.parameter_bytes(self.graph.communication.sharding)

    @property
    def hidden_bytes(self) -> float:
        """Bytes of the hidden state of a micro-batch, or of a slice of it."""
        return self.physical.execution.hidden_bytes / self.graph.layout.slices

    @property
    def gathered(self) -> Exchanged:
        """Groups and bytes of all-gathers."""
        sharding = self.graph.communication.sharding
        return gathered(self.physical, self.links, self.graph.layout, sharding)

    @property
    def reduced(self) -> Exchanged:
        """Groups and bytes of reduce-scatters, or of all-reduces without sharding."""
        return reduced(self.physical, self.links, self.graph.communication.sharding)

    def exchange(self, tasks: Integers, exchanged: Exchanged) -> Load:
        """Collectives of data-parallel groups."""
        graph = self.graph
        rank, unit, peer = (each.take(tasks) for each in (graph.rank, graph.unit, graph.peer))
        return self.links.collectives(rank, unit, peer, exchanged)

    @property
    def all_reduced(self) -> Exchanged:
        """Groups and bytes of all-reduces across groups of replicas."""
        gradients = self.parameter_bytes.gradients
        return Exchanged(self.links.replicated, gradients, Way.ALL_REDUCE)

    @property
    def tied_bytes(self) -> float:
        """Bytes of the tied embedding's gradients that two devices exchange: a share, if sharded.

        Nothing where the ends are on the same ranks.
        """
        layout, physical = self.graph.layout, self.physical
        if not layout.ends_are_apart:
            return 0.0
        share = physical.state_share(layout, self.graph.communication.sharding)
        if not physical.implementation.shards_tied_embedding:
            share = 1.0
        parameters = physical.model.word_parameters(physical.tp)
        return parameters * share * self.parameter_bytes.gradients

    @property
    def waiting_factor(self) -> float:
        """Factor of passes' seconds on the slowest device to those on a mean one."""
        graph = self.graph
        return self.physical.waiting_factor(graph.layout, graph.communication.sharding)

    def passes(self, tasks: Integers, *parts: str) -> Load:
        """Passes of micro-batches through units, by their parts; of slices, an equal share.

        What they exchange between experts is in that, unless it is priced by itself.
        """
        units = self.physical.unit_seconds(self.graph.layout)
        seconds = self.waiting_factor * self._of_units(units, tasks, parts)
        return Load(seconds - self.exchanged_inside(tasks) if self.graph.templates else seconds)

    def _of_units(self, units: UnitSeconds, tasks: Integers, parts: Sequence[str]) -> Seconds:
        """The sum of some parts of passes, for each task."""
        seconds = units.summed(*parts).take(self.graph.unit.take(tasks))
        return seconds / self.graph.layout.slices

    def host_copies(self, tasks: Integers) -> Load:
        """Copies of offloaded activations, to the host or back."""
        layout = self.graph.layout
        seconds = host_copy_seconds(self.physical, layout) / layout.slices
        return Load(seconds[self.graph.unit[tasks]])

    def exchanges(self, tasks: Integers, operation: Operation) -> Load:
        """All-to-alls of experts, each as long as if its pass had nothing else."""
        return Load(np.full(len(tasks), self._exchange_seconds[operation]))

    @cached_property
    def _exchange_seconds(self) -> dict[Operation, float]:
        """Seconds of a dispatch and of a combine: layers with experts exchange equally much."""
        layers = (each.kept for each in parts(self.physical).layers)
        each = next(
            filter(None, (exchange_seconds(self.physical, layer) for layer in layers)), None
        )
        if each is None:
            raise InvalidConfiguration("model", "has no experts to exchange tokens between")
        slices = self.graph.layout.slices
        kinds = Operation.EXPERT_DISPATCH, Operation.EXPERT_COMBINE
        return {kind: one / slices for kind, one in zip(kinds, each, strict=True)}

    def exchanged_inside(self, tasks: Integers) -> Seconds:
        """Seconds of the exchanges that are pieces of the tasks' passes."""
        graph = self.graph
        seconds = np.zeros((len(OPERATIONS), graph.layout.units + 1))
        for of_pass, template in graph.templates.items():
            seconds[of_pass] = sum(
                self._exchange_seconds[piece.operation]
                for piece in template
                if piece.operation.row.stream is EXPERTS
            )
        inside: Seconds = seconds[graph.operation[tasks], graph.unit[tasks]]
        return inside

    def state_traffic(self, tasks: Integers, traffic: float) -> Load:
        """Tasks that move `traffic` bytes for each parameter of a rank's state."""
        layout, sharding = self.graph.layout, self.graph.communication.sharding
        parameters = self.physical.state_parameters(layout, sharding)
        seconds = self._traffic_seconds(parameters * traffic)
        return Load(seconds[self.graph.rank[tasks]])

    def orthogonalising(self, tasks: Integers) -> Load:
        """Tasks that make the matrices of a rank's momentum orthogonal, gathered or not."""
        layout, sharding = self.graph.layout, self.graph.communication.sharding
        seconds = orthogonalising_seconds(self.physical, layout, sharding)
        if not self.physical.implementation.updates_whole_matrices:
            seconds = seconds + layout.sums(momentum_seconds(self.physical, layout, sharding))
        return Load(seconds[self.graph.rank[tasks]])

    def quantising_weights(self, tasks: Integers) -> Seconds:
        """Seconds in which the weights of tasks' ranks are quantised, as they are once a step."""
        physical = self.physical
        if (quantisation := physical.execution.quantisation) is None:
            return np.zeros(len(tasks))
        layout = self.graph.layout
        traffic = quantisation.traffic(physical.execution.number)
        parameters = layout.sums(physical.quantised_parameters(layout))
        return self._traffic_seconds(parameters * traffic)[self.graph.rank[tasks]]

    def _traffic_seconds(self, size: Seconds) -> Seconds:
        device = self.physical.cluster.device
        return size / (device.memory_bandwidth * device.memory_efficiency)


def gathered(
    physical: ModelOnCluster, links: Links, layout: Layout, sharding: Sharding
) -> Exchanged:
    """Groups and bytes of all-gathers."""
    sizes = physical.gathered_bytes(layout, sharding)
    return Exchanged(links.shared, sizes, Way.ALL_GATHER)


def reduced(physical: ModelOnCluster, links: Links, sharding: Sharding) -> Exchanged:
    """Groups and bytes of reduce-scatters, or of all-reduces without sharding."""
    way = Way.ALL_REDUCE if sharding is Sharding.NONE else Way.REDUCE_SCATTER
    return Exchanged(links.shared, physical.parameter_bytes(sharding).gradients, way)


@of_any_size
@once_for_stages
def data_parallel_seconds(
    physical: ModelOnCluster, layout: Layout, sharding: Sharding
) -> tuple[Seconds, Seconds]:
    """Seconds of a gather and of a reduction of each unit, with its ports to itself."""
    links = physical.links(layout)
    return (
        _alone(links, layout, gathered(physical, links, layout, sharding)),
        _alone(links, layout, reduced(physical, links, sharding)),
    )


@of_any_size
@once_for_stages
def momentum_seconds(physical: ModelOnCluster, layout: Layout, sharding: Sharding) -> Seconds:
    """Seconds of a gather of each unit's momentum (Muon), with its ports to itself."""
    if sharding is Sharding.NONE:
        return np.zeros(layout.units)
    links = physical.links(layout)
    return _alone(links, layout, Exchanged(links.shared, float(NUMBER), Way.ALL_GATHER))


def _alone(links: Links, layout: Layout, exchanged: Exchanged) -> Seconds:
    """Seconds of a collective of each unit, with its ports to itself."""
    rank = layout.rank_of_unit
    ends = rank, np.arange(layout.units, dtype=np.int32), layout.peer_of_rank[rank]
    load = links.collectives(*ends, exchanged)
    rates = narrowest(links.routes.port_bandwidth, np.asarray(load.ports))
    return np.asarray(load.seconds + load.bytes / rates)


class HostStep(PhysicalStep):
    """The step as its hosts see it: passes take the seconds of launching their kernels."""

    def passes(self, tasks: Integers, *parts: str) -> Load:
        """Passes of micro-batches through units, by their parts."""
        return Load(self._of_units(self.physical.unit_launches(self.graph.layout), tasks, parts))

"""Costs from first principles: a model on a cluster, divided over its devices.

Rules:

- A compute step takes the seconds of `sim.compute`, on every device of a
  tensor-parallel group alike.
- Each pipeline rank has four ports: its GPU's NVLink out and in, and its share
  of its node's network out and in. A transfer leaves by the sender's port of
  the link that it crosses and enters by the receiver's.
- A gather or reduction is a ring over the rank's data-parallel group as it is
  placed on nodes. It uses its own rank's out and in ports of the narrowest
  link: where g members share a node, the ring crosses to the next node once for
  all of them, with g shares of the network.
- The optimizer's update moves the rank's share of the state through memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schedules import InvalidConfiguration, Layout, Operation, Sharding, TaskGraph, find_schedule
from schedules.columns import NONE, Flags, Integers, Seconds
from sim.cluster import Cluster
from sim.collectives import ring_bytes, ring_steps
from sim.compute import stage_seconds
from sim.costs import Costs
from sim.implementation import PAPER, Implementation
from sim.model import Transformer
from sim.placement import DevicePlacement

NVLINK_OUT, NVLINK_IN, NETWORK_OUT, NETWORK_IN = range(4)
PORTS = 4
"""The ports of a pipeline rank; port p of rank r has the number PORTS r + p."""

GATHER_OR_REDUCE = (Operation.GATHER, Operation.REDUCE)


@dataclass(frozen=True)
class PhysicalCosts:
    """A model trained on a cluster, with groups of these sizes; prices any graph of it.

    `data_parallel` is N_DP, `tensor_parallel` N_TP, `microbatch_size` S_mb in
    samples; N_PP is the graph's. Raises `InvalidConfiguration` for what cannot
    be divided so.
    """

    model: Transformer
    cluster: Cluster
    tensor_parallel: int = 1
    data_parallel: int = 1
    microbatch_size: int = 1
    implementation: Implementation = PAPER

    def __post_init__(self) -> None:
        for field in ("tensor_parallel", "data_parallel", "microbatch_size"):
            if getattr(self, field) < 1:
                raise InvalidConfiguration(field, f"must be at least 1, not {getattr(self, field)}")
        if self.model.heads % self.tensor_parallel:
            raise InvalidConfiguration(
                "tensor_parallel",
                f"{self.tensor_parallel} does not divide {self.model.name}'s "
                f"{self.model.heads} heads",
            )
        self.placement(1)

    def placement(self, pipeline_parallel: int) -> DevicePlacement:
        """Where the devices are, with so many pipeline ranks."""
        return DevicePlacement(
            pipeline_parallel,
            self.data_parallel,
            self.tensor_parallel,
            self.cluster.gpus_per_node,
        )

    def layers_per_stage(self, layout: Layout) -> int:
        """How many layers a stage has; raises `InvalidConfiguration` if they differ."""
        layers, ranks = self.model.layers, layout.pipeline_parallel
        if layers % layout.stages:
            raise InvalidConfiguration(
                "loops" if layout.placement == "looped" else "stages_per_rank",
                f"{layers} layers cannot be divided into {layout.stages} equal stages "
                f"({ranks} ranks x {layout.stages_per_rank})",
            )
        return layers // layout.stages

    def stage_parameters(self, layout: Layout) -> Seconds:
        """For each stage, its parameters on one device of its rank.

        The embedding is with the first stage. The last has a copy of the word
        embedding for its output layer, unless both are on one rank.
        """
        ranks = self.tensor_parallel
        layers = self.layers_per_stage(layout)
        parameters = np.full(layout.stages, layers * self.model.layer_parameters(ranks))
        parameters[0] += self.model.embedding_parameters(ranks)
        if layout.rank_of_stage[0] != layout.rank_of_stage[-1]:
            parameters[-1] += self.model.word_parameters(ranks)
        return parameters

    def state_share(self, sharding: Sharding) -> float:
        """The share of its parameters' state that a device keeps and updates."""
        return 1.0 if sharding is Sharding.NONE else 1 / self.data_parallel

    def costs(self, graph: TaskGraph) -> Costs:
        """The costs of each task of the graph."""
        links = _Links(
            self, self.placement(graph.layout.pipeline_parallel), _port_bandwidth(self, graph)
        )
        port_out, port_in = _ports(links, graph)
        return Costs(
            _compute_seconds(self, graph) + _latency(links, graph),
            _bytes(links, graph),
            port_out,
            port_in,
            links.bandwidth,
        )


def default_stages_per_rank(
    schedule: str, model: Transformer, pipeline_parallel: int, loops: int = 1
) -> int:
    """How finely a rank is divided if nothing else is said.

    Into its loops where it loops. Else into its layers, so that each layer is
    gathered and reduced by itself, beside the compute of the others.
    """
    looped = find_schedule(schedule).placement == "looped"
    if looped and (pipeline_parallel > 1 or loops > 1):
        return loops
    if model.layers % pipeline_parallel:
        raise InvalidConfiguration(
            "pipeline_parallel",
            f"{model.layers} layers cannot be divided over {pipeline_parallel} ranks",
        )
    return model.layers // pipeline_parallel


def _compute_seconds(physical: PhysicalCosts, graph: TaskGraph) -> Seconds:
    """Seconds of compute steps and updates; zero for communication."""
    layout = graph.layout
    stages = stage_seconds(physical, layout.stages, physical.layers_per_stage(layout))
    by_stage = np.zeros((len(Operation), layout.stages))
    by_stage[Operation.FORWARD] = stages.forward
    by_stage[Operation.BACKWARD] = stages.backward_input + stages.backward_weight
    by_stage[Operation.BACKWARD_INPUT] = stages.backward_input
    by_stage[Operation.BACKWARD_WEIGHT] = stages.backward_weight
    seconds: Seconds = by_stage[graph.operation, graph.stage]
    updates = graph.operation == Operation.OPTIMIZER
    seconds[updates] = _update_seconds(physical, graph)[graph.rank[updates]]
    return seconds


def _update_seconds(physical: PhysicalCosts, graph: TaskGraph) -> Seconds:
    """Seconds of each rank's optimizer step, at the speed of memory."""
    parameters = rank_parameters(physical, graph.layout)
    parameters = parameters * physical.state_share(graph.communication.sharding)
    traffic = parameters * physical.implementation.optimizer_traffic
    seconds: Seconds = traffic / physical.cluster.device.memory_bandwidth
    return seconds


def rank_parameters(physical: PhysicalCosts, layout: Layout) -> Seconds:
    """For each pipeline rank, its parameters on one device."""
    parameters: Seconds = np.bincount(  # type: ignore[assignment]
        layout.rank_of_stage, physical.stage_parameters(layout), layout.pipeline_parallel
    )
    return parameters


@dataclass(frozen=True, eq=False)
class _Links:
    """The links that the groups of a configuration cross, and the ports' bytes/s."""

    physical: PhysicalCosts
    placement: DevicePlacement
    bandwidth: Seconds

    def latency(self, crosses: Flags) -> Seconds:
        """Seconds a step, between nodes where it crosses."""
        cluster = self.physical.cluster
        return np.where(crosses, cluster.inter_node.latency, cluster.intra_node.latency)

    def ring_spans_nodes(self) -> Flags:
        """For each rank, whether its data-parallel groups reach over several nodes."""
        return self.placement.data_group_nodes() > 1

    def ring_uses_network(self) -> Flags:
        """For each rank, whether the network is the narrowest part of its ring."""
        cluster = self.physical.cluster
        shares = self.placement.data_members_per_node() * cluster.inter_node.bandwidth
        return self.ring_spans_nodes() & (shares < cluster.intra_node.bandwidth)

    def ring_shares(self) -> Integers:
        """For each rank, how many members' shares of its port the ring's bytes have."""
        return np.where(self.ring_uses_network(), self.placement.data_members_per_node(), 1)


def _port_bandwidth(physical: PhysicalCosts, graph: TaskGraph) -> Seconds:
    cluster = physical.cluster
    of_rank = np.empty(PORTS)
    of_rank[[NVLINK_OUT, NVLINK_IN]] = cluster.intra_node.bandwidth
    of_rank[[NETWORK_OUT, NETWORK_IN]] = cluster.inter_node.bandwidth
    return np.tile(of_rank, graph.layout.pipeline_parallel)


def _is_collective(links: _Links, graph: TaskGraph) -> Flags:
    """Gathers and reductions that have anyone to communicate with."""
    alone = links.physical.data_parallel == 1
    return np.isin(graph.operation, GATHER_OR_REDUCE) & (not alone)


def _passes(graph: TaskGraph) -> Seconds:
    """For each operation, how often it passes its data around the ring."""
    passes = np.zeros(len(Operation))
    passes[Operation.GATHER] = 1.0
    passes[Operation.REDUCE] = 2.0 if graph.communication.sharding is Sharding.NONE else 1.0
    return passes


def _latency(links: _Links, graph: TaskGraph) -> Seconds:
    """Seconds of communication before and besides its bytes."""
    seconds = np.zeros(len(graph))
    sends, collective = graph.is_transfer, _is_collective(links, graph)
    crosses = links.placement.crosses_nodes()[graph.rank[sends], graph.peer[sends]]
    seconds[sends] = links.latency(crosses) + links.physical.implementation.transfer_seconds
    steps = _passes(graph)[graph.operation[collective]] * ring_steps(links.physical.data_parallel)
    of_rank = links.latency(links.ring_spans_nodes())
    seconds[collective] = steps * of_rank[graph.rank[collective]]
    return seconds


def _bytes(links: _Links, graph: TaskGraph) -> Seconds:
    """Bytes through a task's ports; those of a ring, for one member's share of the port."""
    physical = links.physical
    sizes = np.zeros((len(Operation), graph.layout.stages))
    parameters = physical.stage_parameters(graph.layout)
    sizes[Operation.GATHER] = parameters * physical.implementation.weight_bytes
    sizes[Operation.REDUCE] = parameters * physical.implementation.gradient_bytes
    sizes = ring_bytes(1.0, physical.data_parallel) * _passes(graph)[:, None] * sizes
    moved: Seconds = sizes[graph.operation, graph.stage]
    moved = np.where(_is_collective(links, graph), moved / links.ring_shares()[graph.rank], 0.0)
    moved[graph.is_transfer] = physical.model.transfer_bytes(
        physical.microbatch_size, physical.tensor_parallel
    )
    return moved


def _ports(links: _Links, graph: TaskGraph) -> tuple[Integers, Integers]:
    """The ports that each task's bytes leave and enter by."""
    port_out = np.full(len(graph), NONE, dtype=np.int32)
    port_in = port_out.copy()
    sends, collective = graph.is_transfer, _is_collective(links, graph)
    sender, receiver = graph.rank[sends], graph.peer[sends]
    crosses = links.placement.crosses_nodes()[sender, receiver]
    port_out[sends] = PORTS * sender + np.where(crosses, NETWORK_OUT, NVLINK_OUT)
    port_in[sends] = PORTS * receiver + np.where(crosses, NETWORK_IN, NVLINK_IN)
    rank = graph.rank[collective]
    uses_network = links.ring_uses_network()[rank]
    port_out[collective] = PORTS * rank + np.where(uses_network, NETWORK_OUT, NVLINK_OUT)
    port_in[collective] = PORTS * rank + np.where(uses_network, NETWORK_IN, NVLINK_IN)
    return port_out, port_in

"""Costs from first principles: a model on a cluster, divided over its devices.

Rules:

- A compute step takes the seconds of `bfpp.sim.compute`, on every device of a
  tensor-parallel group alike, and longer for the communication beside it.
- Transfers, gathers and reductions are those of `bfpp.sim.links`.
- The optimizer's update moves the rank's share of the state through memory.
- A step does not go beyond the device's power limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bfpp.schedules import InvalidConfiguration, Layout, Sharding, TaskGraph, find_schedule
from bfpp.schedules.attention import Attention
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.composite import shares
from bfpp.schedules.operations import Operation
from bfpp.schedules.precision import Precision
from bfpp.schedules.recomputation import Recomputation
from bfpp.sim.checkpointing import recomputed_flops
from bfpp.sim.cluster import Cluster
from bfpp.sim.compute import StageSeconds, stage_seconds
from bfpp.sim.costs import Costs, Load, inside_passes
from bfpp.sim.implementation import PAPER, Implementation, ParameterBytes
from bfpp.sim.links import Links
from bfpp.sim.model import Transformer, model_flops
from bfpp.sim.operators import Execution
from bfpp.sim.placement import DevicePlacement
from bfpp.sim.power import least_seconds, within_power
from bfpp.sim.prices import PRICES


@dataclass(frozen=True)
class PhysicalCosts:
    """A model trained on a cluster, with groups of these sizes; prices any graph of it.

    `data_parallel` is N_DP, `tensor_parallel` N_TP, `microbatch_size` S_mb in
    samples; N_PP is the graph's. `recompute`, `attention`, `sequence_parallel`
    and `precision` are the implementation's unless they are given. Raises
    `InvalidConfiguration` for what cannot be divided so.
    """

    model: Transformer
    cluster: Cluster
    tensor_parallel: int = 1
    data_parallel: int = 1
    microbatch_size: int = 1
    implementation: Implementation = PAPER
    recompute: Recomputation | None = None
    attention: Attention | None = None
    sequence_parallel: bool | None = None
    precision: Precision | None = None

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

    @property
    def recomputation(self) -> Recomputation:
        """What the backward pass computes again."""
        return self.implementation.recompute if self.recompute is None else self.recompute

    @cached_property
    def execution(self) -> Execution:
        """How a micro-batch goes through the model on one device."""
        usual = self.implementation
        divided = (
            usual.sequence_parallel if self.sequence_parallel is None else self.sequence_parallel
        )
        return Execution(
            self.model,
            self.microbatch_size,
            self.tensor_parallel,
            divided and self.tensor_parallel > 1,
            self.attention or usual.attention,
            self.precision or usual.precision,
            usual.fused_kernels,
            usual.accumulation_traffic,
        )

    def parameter_bytes(self, sharding: Sharding) -> ParameterBytes:
        """What is kept of each parameter."""
        return self.implementation.parameter_bytes(self.execution.precision, sharding)

    def hardware_flops(self, layout: Layout) -> float:
        """Operations (flop) of a step on one device, those of recomputation too (for the HFU).

        As in the paper's C_GPU, attention's are counted as if nothing were masked.
        """
        samples = self.microbatch_size * layout.microbatches
        recomputed = layout.stages * self.recomputation.layers_of(self.layers_per_stage(layout))
        flops = model_flops(self.model, samples)
        flops += samples * recomputed * recomputed_flops(self.model, self.recomputation)
        return flops / (self.tensor_parallel * layout.pipeline_parallel)

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

        The embedding is with the first stage, the output layer with the last.
        Where they are tied and on one rank, the output layer adds nothing;
        on two, each has a copy.
        """
        ranks = self.tensor_parallel
        layers = self.layers_per_stage(layout)
        parameters = np.full(layout.stages, layers * self.model.layer_parameters(ranks))
        parameters[0] += self.model.embedding_parameters(ranks)
        apart = layout.rank_of_stage[0] != layout.rank_of_stage[-1]
        if apart or not self.model.tied_embeddings:
            parameters[-1] += self.model.word_parameters(ranks)
        return parameters

    def state_share(self, sharding: Sharding) -> float:
        """The share of its parameters' state that a device keeps and updates."""
        return 1.0 if sharding is Sharding.NONE else 1 / self.data_parallel

    def costs(self, graph: TaskGraph) -> Costs:
        """The costs of each task of the graph."""
        step = PhysicalStep(self, graph)
        costs = step.links.beside_compute(graph, step.alone())
        return within_power(graph, costs, self._least_seconds(graph.layout))

    def _least_seconds(self, layout: Layout) -> float:
        """Seconds that the power limit asks for, at least, for a step."""
        return least_seconds(self.cluster.device, self.hardware_flops(layout))


@dataclass(frozen=True, eq=False)
class PhysicalStep:
    """A training step while its tasks are priced."""

    physical: PhysicalCosts
    graph: TaskGraph

    @cached_property
    def links(self) -> Links:
        """The links that communication crosses."""
        physical, layout = self.physical, self.graph.layout
        return Links(
            physical.cluster,
            physical.implementation,
            physical.placement(layout.pipeline_parallel),
            physical.stage_parameters(layout),
            physical.execution,
        )

    @property
    def parameter_bytes(self) -> ParameterBytes:
        """What is kept of each parameter."""
        return self.physical.parameter_bytes(self.graph.communication.sharding)

    @cached_property
    def _stages(self) -> StageSeconds:
        layout = self.graph.layout
        return stage_seconds(self.physical, layout.stages, self.physical.layers_per_stage(layout))

    def alone(self) -> Costs:
        """The costs of each task if nothing else were under way."""
        graph = self.graph
        seconds, moved = np.zeros((2, len(graph)))
        port_out, port_in = np.full((2, len(graph)), NONE, dtype=np.int32)
        for operation, tasks in graph.by_operation():
            load = PRICES[operation].physical_load(self, tasks)
            seconds[tasks], moved[tasks] = load.seconds, load.bytes
            port_out[tasks], port_in[tasks] = load.port_out, load.port_in
        if graph.templates:
            seconds = seconds * shares(graph) + inside_passes(graph, self._seconds_alone)
        return Costs(seconds, moved, port_out, port_in, self.links.port_bandwidth)

    def _seconds_alone(self, operation: Operation, tasks: Integers) -> Seconds:
        """Seconds of tasks that have their ports to themselves."""
        load = PRICES[operation].physical_load(self, tasks)
        bandwidth = self.links.port_bandwidth
        rate = np.minimum(bandwidth[load.port_out], bandwidth[load.port_in])
        seconds: Seconds = np.broadcast_to(load.seconds + load.bytes / rate, len(tasks))
        return seconds

    def passes(self, tasks: Integers, *parts: str) -> Load:
        """Passes of micro-batches through stages, by their parts."""
        by_stage = sum(getattr(self._stages, part) for part in parts)
        return Load(by_stage[self.graph.stage[tasks]])

    def state_traffic(self, tasks: Integers, traffic: float) -> Load:
        """Tasks that move `traffic` bytes for each parameter of a rank's state."""
        parameters = rank_parameters(self.physical, self.graph.layout)
        parameters = parameters * self.physical.state_share(self.graph.communication.sharding)
        device = self.physical.cluster.device
        bandwidth = device.memory_bandwidth * device.memory_efficiency
        return Load((parameters * traffic / bandwidth)[self.graph.rank[tasks]])


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


def rank_parameters(physical: PhysicalCosts, layout: Layout) -> Seconds:
    """For each pipeline rank, its parameters on one device."""
    parameters: Seconds = np.bincount(  # type: ignore[assignment]
        layout.rank_of_stage, physical.stage_parameters(layout), layout.pipeline_parallel
    )
    return parameters

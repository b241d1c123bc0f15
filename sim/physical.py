"""Costs from first principles: a model on a cluster, divided over its devices.

Rules:

- A compute step takes the seconds of `bfpp.sim.compute`, on every device of a
  tensor-parallel group alike, and longer for the communication beside it.
- Transfers, gathers and reductions are those of `bfpp.sim.links`.
- The optimizer's update moves the rank's share of the state through memory.
- A step does not go beyond the device's power limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from bfpp.schedules import Degrees, InvalidConfiguration, Layout, Sharding, TaskGraph
from bfpp.schedules.attention import Attention
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.composite import shares
from bfpp.schedules.cut import even_cut
from bfpp.schedules.operations import Operation
from bfpp.schedules.precision import Precision
from bfpp.schedules.recomputation import Recomputation
from bfpp.sim.checkpointing import recomputed_flops
from bfpp.sim.cluster import Cluster
from bfpp.sim.compute import Layers, UnitSeconds, unit_seconds
from bfpp.sim.costs import Costs, Load, inside_passes
from bfpp.sim.implementation import PAPER, Implementation, ParameterBytes
from bfpp.sim.links import Links
from bfpp.sim.model import Transformer, model_flops
from bfpp.sim.operators import Execution
from bfpp.sim.placement import DevicePlacement
from bfpp.sim.power import TOLERANCE, least_seconds, within_power
from bfpp.sim.prices import PRICES
from bfpp.sim.remembered import once_for_stages

ROUNDING = 1e-9
"""Share by which sums of the same seconds in another order may differ: more than they do."""


@dataclass(frozen=True)
class PhysicalCosts:
    """A model trained on a cluster, with groups of these sizes; prices any graph of it.

    `microbatch_size` is S_mb in samples; N_PP is the graph's. `recompute`, `attention`,
    `sequence_parallel` and `precision` are the implementation's unless they are given. `cut`
    holds the layers of each stage: by default as equal as can be. Raises
    `InvalidConfiguration` for what cannot be divided so.
    """

    model: Transformer
    cluster: Cluster
    degrees: Degrees = field(default_factory=Degrees)
    microbatch_size: int = 1
    implementation: Implementation = PAPER
    recompute: Recomputation | None = None
    attention: Attention | None = None
    sequence_parallel: bool | None = None
    precision: Precision | None = None
    cut: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for degree in ("cp", "ep", "dp_replicate"):
            if getattr(self.degrees, degree) > 1:
                raise InvalidConfiguration(degree, "only 1 has costs so far")
        if self.microbatch_size < 1:
            raise InvalidConfiguration(
                "microbatch_size", f"must be at least 1, not {self.microbatch_size}"
            )
        if self.model.heads % self.tp:
            raise InvalidConfiguration(
                "tp",
                f"{self.tp} does not divide {self.model.name}'s {self.model.heads} heads",
            )
        DevicePlacement(self.degrees, self.cluster.gpus_per_node)

    @cached_property
    def loads(self) -> dict[object, Costs]:
        """What tasks cost by their kind, by what that depends on besides: filled as graphs come."""
        return {}

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
            self.tp,
            divided and self.tp > 1,
            self.attention or usual.attention,
            self.precision or usual.precision,
            usual.fused_kernels,
            usual.accumulation_traffic,
        )

    def parameter_bytes(self, sharding: Sharding) -> ParameterBytes:
        """What is kept of each parameter."""
        return self.implementation.parameter_bytes(self.execution.precision, sharding)

    @property
    def tp(self) -> int:
        """Devices that share a layer (N_TP)."""
        return self.degrees.tp

    @once_for_stages
    def placement(self, layout: Layout) -> DevicePlacement:
        """Where the devices are, and which ranks' share their stages."""
        sharing = tuple(tuple(layout.sharing(rank)) for rank in range(layout.pp))
        degrees = replace(self.degrees, pp=layout.pp)
        return DevicePlacement(degrees, self.cluster.gpus_per_node, sharing)

    def devices(self, layout: Layout) -> int:
        """Devices that take part."""
        return self.degrees.devices // self.degrees.pp * layout.pp

    def batch(self, layout: Layout) -> int:
        """Samples of a step (B)."""
        return self.degrees.dp * self.microbatch_size * layout.microbatches

    def model_flops(self, layout: Layout) -> float:
        """Operations (flop) of a step on one device, without recomputation (for the MFU)."""
        return model_flops(self.model, self.batch(layout)) / self.devices(layout)

    def hardware_flops(self, layout: Layout) -> float:
        """Operations (flop) of a step on one device, those of recomputation too (for the HFU).

        As in the paper's C_GPU, attention's are counted as if nothing were masked.
        """
        samples = self.microbatch_size * layout.microbatches
        recomputed = int(self.layers(layout).recomputed.sum())
        again = samples * recomputed * recomputed_flops(self.model, self.recomputation)
        return self.model_flops(layout) + again / (self.tp * layout.pp)

    @once_for_stages
    def layers(self, layout: Layout) -> Layers:
        """The layers of each unit; raises `InvalidConfiguration` if there are too few.

        A stage's layers are divided over its units as equally as can be, the later ones not
        larger; the first layers of a stage are those that are recomputed.
        """
        of_stage = np.array(self.cut or even_cut(self.model.layers, layout.stages), dtype=np.int32)
        if len(of_stage) != layout.stages or of_stage.sum() != self.model.layers:
            raise InvalidConfiguration(
                "cut",
                f"{len(of_stage)} stages of {of_stage.sum()} layers are not the {layout.stages} "
                f"stages of {self.model.layers} layers",
            )
        units = np.array(layout.units_per_stage, dtype=np.int32)
        if self.cut is None and self.model.layers < layout.units:
            raise InvalidConfiguration(
                "loops" if layout.units == layout.stages else "units_per_stage",
                f"{self.model.layers} layers cannot be divided over {layout.units} stages",
            )
        if (units > np.maximum(of_stage, 1)).any():
            raise InvalidConfiguration(
                "units_per_stage",
                f"{of_stage.min()} layers of a stage cannot be divided into {units.max()} units",
            )
        stage = layout.stage_of_unit
        number = np.arange(layout.units, dtype=np.int32) - (np.cumsum(units) - units)[stage]
        of_unit = (of_stage // units)[stage] + (number < (of_stage % units)[stage])
        before = np.cumsum(of_unit) - of_unit - (np.cumsum(of_stage) - of_stage)[stage]
        again = np.array([self.recomputation.layers_of(count) for count in of_stage.tolist()])
        return Layers(of_unit, np.clip(again[stage] - before, 0, of_unit))

    @once_for_stages
    def unit_parameters(self, layout: Layout) -> Seconds:
        """For each unit, its parameters on one device of its rank.

        The embedding is in the first unit, the output layer in the last.
        Where they are tied and on one rank, the output layer adds nothing;
        on two, each has a copy.
        """
        ranks = self.tp
        layers = self.layers(layout).of_unit.astype(float)
        parameters: Seconds = layers * self.model.layer_parameters(ranks)
        parameters[0] += self.model.embedding_parameters(ranks)
        if layout.ends_are_apart or not self.model.tied_embeddings:
            parameters[-1] += self.model.word_parameters(ranks)
        return parameters

    @once_for_stages
    def links(self, layout: Layout) -> Links:
        """The links that communication crosses."""
        return Links(
            self.cluster,
            self.implementation,
            self.placement(layout),
            self.unit_parameters(layout),
            self.execution,
        )

    @once_for_stages
    def unit_seconds(self, layout: Layout) -> UnitSeconds:
        """Seconds of the passes of each unit."""
        return unit_seconds(self, self.layers(layout))

    def state_share(self, layout: Layout, sharding: Sharding) -> float:
        """The share of its parameters' state that a device keeps and updates."""
        keepers = self.degrees.dp * (1 + len(layout.copies))
        return 1.0 if sharding is Sharding.NONE else 1 / keepers

    def costs(self, graph: TaskGraph) -> Costs:
        """The costs of each task of the graph."""
        step = PhysicalStep(self, graph)
        costs = step.links.beside_compute(graph, step.alone())
        return within_power(graph, costs, self._least_seconds(graph.layout))

    def _least_seconds(self, layout: Layout) -> float:
        """Seconds that the power limit asks for, at least, for a step."""
        return least_seconds(self.cluster.device, self.hardware_flops(layout))

    def shortest_step(self, layout: Layout) -> float:
        """Seconds that a step takes at least: those of the busiest rank, and of the power limit.

        Of ranks that share stages, one has at least half of the micro-batches.
        """
        units = self.unit_seconds(layout)
        passes = units.forward + units.backward_input + units.backward_weight
        busiest = layout.sums(passes).max() * layout.microbatches / (1 + len(layout.copies))
        within = (1 - TOLERANCE) * self._least_seconds(layout)
        return (1 - ROUNDING) * max(float(busiest), within)


@dataclass(frozen=True, eq=False)
class PhysicalStep:
    """A training step while its tasks are priced."""

    physical: PhysicalCosts
    graph: TaskGraph

    @property
    def links(self) -> Links:
        """The links that communication crosses."""
        return self.physical.links(self.graph.layout)

    @property
    def parameter_bytes(self) -> ParameterBytes:
        """What is kept of each parameter."""
        return self.physical.parameter_bytes(self.graph.communication.sharding)

    def alone(self) -> Costs:
        """The costs of each task if nothing else were under way."""
        graph = self.graph
        key = graph.layout.stages_on_ranks, graph.communication, graph.kinds.codes
        loads = self.physical.loads
        if key not in loads:
            loads[key] = self._of_kinds()
        costs = loads[key].of(graph.kinds.of_task)
        if not graph.templates:
            return costs
        inside = inside_passes(graph, self._seconds_alone)
        return replace(costs, seconds=costs.seconds * shares(graph) + inside)

    def _of_kinds(self) -> Costs:
        """The costs of each kind of task."""
        kinds = self.graph.kinds
        seconds, moved = np.zeros((2, len(kinds.first)))
        port_out, port_in = np.full((2, len(kinds.first)), NONE, dtype=np.int32)
        for operation, chosen in kinds.by_operation:
            load = PRICES[operation].physical_load(self, kinds.first[chosen])
            seconds[chosen], moved[chosen] = load.seconds, load.bytes
            port_out[chosen], port_in[chosen] = load.port_out, load.port_in
        return Costs(seconds, moved, port_out, port_in, self.links.port_bandwidth)

    def _seconds_alone(self, operation: Operation, tasks: Integers) -> Seconds:
        """Seconds of tasks that have their ports to themselves."""
        load = PRICES[operation].physical_load(self, tasks)
        bandwidth = self.links.port_bandwidth
        rate = np.minimum(bandwidth[load.port_out], bandwidth[load.port_in])
        seconds: Seconds = np.broadcast_to(load.seconds + load.bytes / rate, len(tasks))
        return seconds

    def passes(self, tasks: Integers, *parts: str) -> Load:
        """Passes of micro-batches through units, by their parts."""
        units = self.physical.unit_seconds(self.graph.layout)
        by_unit = sum(getattr(units, part) for part in parts)
        return Load(by_unit[self.graph.unit[tasks]])

    def state_traffic(self, tasks: Integers, traffic: float) -> Load:
        """Tasks that move `traffic` bytes for each parameter of a rank's state."""
        parameters = rank_parameters(self.physical, self.graph.layout)
        sharding = self.graph.communication.sharding
        parameters = parameters * self.physical.state_share(self.graph.layout, sharding)
        device = self.physical.cluster.device
        bandwidth = device.memory_bandwidth * device.memory_efficiency
        return Load((parameters * traffic / bandwidth)[self.graph.rank[tasks]])


@once_for_stages
def rank_parameters(physical: PhysicalCosts, layout: Layout) -> Seconds:
    """For each pipeline rank, its parameters on one device."""
    return layout.sums(physical.unit_parameters(layout))

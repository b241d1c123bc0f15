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

from bfpp.schedules import Degrees, InvalidConfiguration, Layout, Schedule, Sharding, TaskGraph
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.composite import shares
from bfpp.schedules.operations import Operation
from bfpp.sim.cluster import Cluster
from bfpp.sim.compute import UnitSeconds, unit_seconds
from bfpp.sim.costs import Costs, Load, inside_passes
from bfpp.sim.implementation import PAPER, Implementation
from bfpp.sim.links import Links
from bfpp.sim.model import Transformer, hardware_flops
from bfpp.sim.placement import DevicePlacement
from bfpp.sim.power import least_seconds, within_power
from bfpp.sim.prices import PRICES


@dataclass(frozen=True)
class PhysicalCosts:
    """A model trained on a cluster, with groups of these sizes; prices any graph of it.

    `microbatch_size` is S_mb in samples; N_PP is the graph's. Raises
    `InvalidConfiguration` for what cannot be divided so.
    """

    model: Transformer
    cluster: Cluster
    degrees: Degrees = field(default_factory=Degrees)
    microbatch_size: int = 1
    implementation: Implementation = PAPER

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
        self.placement(1)

    @property
    def tp(self) -> int:
        """Devices that share a layer (N_TP)."""
        return self.degrees.tp

    def placement(self, pp: int) -> DevicePlacement:
        """Where the devices are, with that many pipeline ranks."""
        return DevicePlacement(replace(self.degrees, pp=pp), self.cluster.gpus_per_node)

    def batch(self, layout: Layout) -> int:
        """Samples of a step (B)."""
        return self.degrees.dp * self.microbatch_size * layout.microbatches

    def hardware_flops(self, layout: Layout) -> float:
        """Flops of each device in a step, recomputation included."""
        devices = replace(self.degrees, pp=layout.pp).devices
        return hardware_flops(self.model, self.batch(layout)) / devices

    def layers_per_unit(self, layout: Layout) -> int:
        """How many layers a unit has; raises `InvalidConfiguration` if they differ."""
        layers, ranks = self.model.layers, layout.pp
        if layers % layout.units:
            raise InvalidConfiguration(
                "loops" if layout.units == layout.stages else "units",
                f"{layers} layers cannot be divided into {layout.units} equal units "
                f"({ranks} ranks x {layout.units // ranks})",
            )
        return layers // layout.units

    def unit_parameters(self, layout: Layout) -> Seconds:
        """For each unit, its parameters on one device of its rank.

        The embedding is with the first unit, the output layer with the last.
        Where they are tied and on one rank, the output layer adds nothing;
        on two, each has a copy.
        """
        ranks = self.tp
        layers = self.layers_per_unit(layout)
        parameters = np.full(layout.units, layers * self.model.layer_parameters(ranks))
        parameters[0] += self.model.embedding_parameters(ranks)
        apart = layout.rank_of_unit[0] != layout.rank_of_unit[-1]
        if apart or not self.model.tied_embeddings:
            parameters[-1] += self.model.word_parameters(ranks)
        return parameters

    def state_share(self, sharding: Sharding) -> float:
        """The share of its parameters' state that a device keeps and updates."""
        return 1.0 if sharding is Sharding.NONE else 1 / self.degrees.dp

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
            physical.model,
            physical.cluster,
            physical.implementation,
            physical.placement(layout.pp),
            physical.microbatch_size,
            physical.unit_parameters(layout),
        )

    @cached_property
    def _units(self) -> UnitSeconds:
        layout = self.graph.layout
        return unit_seconds(self.physical, layout.units, self.physical.layers_per_unit(layout))

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
        """Passes of micro-batches through units, by their parts."""
        by_unit = sum(getattr(self._units, part) for part in parts)
        return Load(by_unit[self.graph.unit[tasks]])

    def state_traffic(self, tasks: Integers, traffic: float) -> Load:
        """Tasks that move `traffic` bytes for each parameter of a rank's state."""
        parameters = rank_parameters(self.physical, self.graph.layout)
        parameters = parameters * self.physical.state_share(self.graph.communication.sharding)
        device = self.physical.cluster.device
        bandwidth = device.memory_bandwidth * device.memory_efficiency
        return Load((parameters * traffic / bandwidth)[self.graph.rank[tasks]])


def default_division(
    schedule: Schedule, model: Transformer, pp: int, loops: int = 1
) -> tuple[int, int]:
    """Into how many stages a rank is divided, and each of them into how many units.

    Into its loops where it loops; without a pipeline, a loop is a layer. Else a stage is
    divided into its layers, so that each layer is gathered and reduced by itself, overlapped
    with the compute of the others.
    """
    if schedule.looped and (pp > 1 or loops > 1):
        return loops, 1
    if model.layers % pp:
        raise InvalidConfiguration("pp", f"{model.layers} layers cannot be divided over {pp} ranks")
    layers = model.layers // pp
    return (layers, 1) if schedule.looped else (1, layers)


def rank_parameters(physical: PhysicalCosts, layout: Layout) -> Seconds:
    """For each pipeline rank, its parameters on one device."""
    parameters: Seconds = np.bincount(  # type: ignore[assignment]
        layout.rank_of_unit, physical.unit_parameters(layout), layout.pp
    )
    return parameters

"""Costs from first principles: a model on a cluster, divided over its devices.

Rules:

- A compute step takes the seconds of `bfpp.sim.compute`, on every device of a
  tensor-parallel group alike, and longer for the communication that it overlaps.
- Transfers, gathers and reductions are those of `bfpp.sim.links`.
- The optimizer's update moves the rank's share of the state through memory.
- A step does not go beyond the device's power limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from bfpp.schedules import Degrees, InvalidConfiguration, Layout, Sharding, TaskGraph
from bfpp.schedules.attention import Attention, ContextExchange
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.composite import shares
from bfpp.schedules.graph import SomeKinds
from bfpp.schedules.offload import require_share
from bfpp.schedules.operations import EXPERTS, Operation, compute_steps
from bfpp.schedules.precision import Precision
from bfpp.schedules.recomputation import LAYER, Recomputation
from bfpp.sim import cost_kernels
from bfpp.sim.checkpointing import recomputed_flops
from bfpp.sim.cluster import Cluster
from bfpp.sim.compiled_engine import Times, times
from bfpp.sim.compiling import WORK
from bfpp.sim.compute import (
    UnitSeconds,
    exchange_seconds,
    part_counts,
    parts,
    recomputes_units,
    taken_by_exchanges,
    unit_launches,
    unit_seconds,
)
from bfpp.sim.costs import Costs, Load, in_turns, inside_passes, narrowest
from bfpp.sim.divisible import NARROW, require_divisible
from bfpp.sim.implementation import PAPER, Implementation, ParameterBytes
from bfpp.sim.links import Beside, Exchanged, Links
from bfpp.sim.model import Transformer, model_flops
from bfpp.sim.offloading import host_copy_seconds
from bfpp.sim.operators import Execution, Routing, Way
from bfpp.sim.placement import DevicePlacement
from bfpp.sim.power import TOLERANCE, WithinPower, least_seconds, within_power
from bfpp.sim.prices import PRICES
from bfpp.sim.quantisation import quantisation_of
from bfpp.sim.remembered import of_any_size, once_for_stages
from bfpp.sim.unit_layers import Layers, layers_of_units

ROUNDING = 1e-9
"""Share by which sums of the same seconds in another order may differ: more than they do."""


@dataclass(frozen=True)
class PhysicalCosts:
    """A model trained on a cluster, with groups of these sizes; prices any graph of it.

    `microbatch_size` is S_mb in samples; N_PP is the graph's. `recompute`, `attention`,
    `sequence_parallel` and `precision` are the implementation's unless they are given. `cut`
    holds the layers of each stage: by default as equal as can be. `exchange` is what
    context-parallel devices do, `routing` how tokens get to experts. With `quantised_weights` those
    of products whose operands are quantised are kept and gathered so; `quantised_attention` and
    `quantised_head` say that operands of their products are quantised too. Of activations that are
    offloaded, `offload_share` leaves the device. Raises
    `InvalidConfiguration` for what cannot be divided so.

    >>> import bfpp
    >>> costs = bfpp.PhysicalCosts(
    ...     bfpp.load_model("bert-6.6b"), bfpp.load_cluster("dgx1-v100"), bfpp.Degrees(dp=2, tp=4)
    ... )
    >>> layout = bfpp.Layout(2, 8, 4)
    >>> costs.batch(layout), costs.devices(layout)
    (16, 16)
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
    exchange: ContextExchange = ContextExchange.RING
    routing: Routing = field(default_factory=Routing)
    quantised_weights: bool = False
    quantised_attention: bool = False
    quantised_head: bool = False
    offload_share: float = 1.0

    def __post_init__(self) -> None:
        if self.microbatch_size < 1:
            raise InvalidConfiguration(
                "microbatch_size", f"must be at least 1, not {self.microbatch_size}"
            )
        require_share(self.offload_share)
        require_divisible(self.execution)
        if self.quantised_weights and self.execution.quantisation is None:
            raise InvalidConfiguration("quantised_weights", NARROW)
        self._require_modules()
        DevicePlacement.on(self.cluster, self.degrees)

    def _require_modules(self) -> None:
        """Raise `InvalidConfiguration` where a module is recomputed that no layer has."""
        for module in sorted(self.recomputation.modules - {LAYER}):
            if not any(part.kept.of(module) for part in parts(self).layers):
                raise InvalidConfiguration("recompute", f"{self.model.name} has no {module}")

    @cached_property
    def cells(self) -> dict[object, Beside]:
        """What kinds of tasks of a micro-batch cost, by what decides it: filled as graphs come.

        It is the same however parameters are sharded.
        """
        return {}

    @cached_property
    def others(self) -> dict[object, Costs]:
        """The same of all other kinds, whatever the size of micro-batches."""
        return {}

    @cached_property
    def one_sample(self) -> PhysicalCosts:
        """The same with micro-batches of one sample, which remembers what holds of any size."""
        return self if self.microbatch_size == 1 else replace(self, microbatch_size=1)

    def of_size(self, microbatch_size: int) -> PhysicalCosts:
        """The same with micro-batches of that size; all sizes share what they remember."""
        found = replace(self, microbatch_size=microbatch_size)
        vars(found)["one_sample"] = self.one_sample
        return found

    @property
    def recomputation(self) -> Recomputation:
        """What the backward pass computes again."""
        return self.implementation.recompute if self.recompute is None else self.recompute

    @cached_property
    def execution(self) -> Execution:
        """How a micro-batch goes through the model on one device."""
        usual = self.implementation
        precision = self.precision or usual.precision
        divided = (
            usual.sequence_parallel if self.sequence_parallel is None else self.sequence_parallel
        )
        return Execution(
            self.model,
            self.microbatch_size,
            self.tp,
            divided and self.tp > 1,
            self.attention or usual.attention,
            precision,
            usual.fused_kernels,
            usual.accumulation_traffic,
            self.degrees.cp,
            self.degrees.ep,
            self.exchange,
            replace(self.routing, dropping_seconds=usual.dropping_seconds),
            quantisation_of(precision, self.cluster.device),
            self.quantised_attention,
            self.quantised_head,
            usual.eager,
        )

    def parameter_bytes(self, sharding: Sharding) -> ParameterBytes:
        """What is kept of each parameter."""
        return self.implementation.parameter_bytes(self.execution.precision, sharding)

    @property
    def tp(self) -> int:
        """Devices that share a layer (N_TP)."""
        return self.degrees.tp

    @of_any_size
    @once_for_stages
    def placement(self, layout: Layout) -> DevicePlacement:
        """Where the devices are, and which ranks' share their stages."""
        sharing = tuple(tuple(layout.sharing(rank)) for rank in range(layout.pp))
        degrees = replace(self.degrees, pp=layout.pp)
        return DevicePlacement.on(self.cluster, degrees, sharing)

    def devices(self, layout: Layout) -> int:
        """Devices that take part."""
        return self.degrees.devices // self.degrees.pp * layout.pp

    def batch(self, layout: Layout) -> int:
        """Samples of a step (B)."""
        return self.degrees.dp * self.microbatch_size * layout.whole_microbatches

    def model_flops(self, layout: Layout, *, trains: bool = True) -> float:
        """Operations (flop) of a step on one device, without recomputation (for the MFU).

        An evaluation, which has no backward passes, is a third of that.
        """
        flops = self.batch(layout) * self._flops(layout)[0] / self.devices(layout)
        return flops if trains else flops / 3

    def hardware_flops(self, layout: Layout, *, trains: bool = True) -> float:
        """Operations (flop) of a step on one device, those of recomputation too (for the HFU).

        As in the paper's C_GPU, attention's are counted as if nothing were masked.
        """
        if not trains:
            return self.model_flops(layout, trains=False)
        return self.batch(layout) * sum(self._flops(layout)) / self.devices(layout)

    @of_any_size
    @once_for_stages
    def _flops(self, layout: Layout) -> tuple[float, float]:
        """Operations (flop) of a sample, over all devices: the model's, and recomputation's."""
        flops = model_flops(self.model, 1)
        if recomputes_units(self):
            return flops, flops / 3
        recomputed = self.layers(layout).recomputed_of_kind.sum(axis=1).tolist()
        again = sum(
            count * recomputed_flops(kind, self.recomputation)
            for kind, count in zip(self.model.kinds, recomputed, strict=True)
        )
        return flops, float(again)

    @of_any_size
    @once_for_stages
    def layers(self, layout: Layout) -> Layers:
        """The layers of each unit, by kind; raises `InvalidConfiguration` if there are too few."""
        return layers_of_units(self.model, self.recomputation, self.cut, layout)

    def unit_parameters(self, layout: Layout) -> Seconds:
        """For each unit, its parameters on one device of its rank, but for routed experts.

        The embedding is in the first unit, the output layer in the last.
        Where they are tied and on one rank, the output layer adds nothing;
        on two, each has a copy; and so have prediction modules one of the embedding.
        """
        model, ranks = self.model, self.tp
        parameters = self._of_kinds(layout, [kind.layer_parameters(ranks) for kind in model.kinds])
        parameters[0] += model.embedding_parameters(ranks)
        parameters[-1] += model.word_parameters(ranks) * self.copies_of_words(layout)
        parameters[-1] += model.prediction_modules * model.prediction_parameters()
        return parameters

    def copies_of_words(self, layout: Layout) -> int:
        """How often the last unit has a matrix as large as the word embedding."""
        own, apart = not self.model.tied_embeddings, layout.ends_are_apart
        embeds = apart and self.model.prediction_modules > 0
        return 1 + embeds if own else int(apart)

    def unit_expert_parameters(self, layout: Layout) -> Seconds:
        """For each unit, the parameters of routed experts on one device of its rank."""
        model, ranks = self.model, self.degrees.ep
        return self._of_kinds(layout, [kind.expert_parameters(ranks) for kind in model.kinds])

    def _of_kinds(self, layout: Layout, of_kind: list[float]) -> Seconds:
        """For each unit, the sum over its layers of so much for one of each kind."""
        total: Seconds = np.array(of_kind) @ self.layers(layout).of_kind
        return total

    @of_any_size
    @once_for_stages
    def by_stride(self, layout: Layout) -> dict[int, Seconds]:
        """The parameters of each unit, by how far apart the devices are that keep the same."""
        parameters = {self.tp: self.unit_parameters(layout)}
        if self.model.experts is not None:
            experts = self.unit_expert_parameters(layout)
            parameters[self.degrees.ep] = experts + parameters.get(self.degrees.ep, 0.0)
        return parameters

    @of_any_size
    @once_for_stages
    def quantised_parameters(self, layout: Layout) -> Seconds:
        """For each unit, the parameters on a device that their products take quantised."""
        total = np.zeros(layout.units)
        for part, count in part_counts(self, self.layers(layout)):
            total += part.quantised_parameters * count
        return total

    @property
    def quantised_bytes(self) -> float:
        """Bytes that quantisation adds for each such parameter: its copies, or those in place."""
        if (quantisation := self.execution.quantisation) is None:
            return 0.0
        copies = quantisation.copies * quantisation.element
        return copies - (self.execution.number if self.quantised_weights else 0)

    def gathered_bytes(self, layout: Layout, sharding: Sharding) -> Seconds:
        """For each unit, the bytes in which its parameters are gathered, on average."""
        size = self.parameter_bytes(sharding).weights
        parameters: Seconds = sum(self.by_stride(layout).values(), np.zeros(()))
        if (quantisation := self.execution.quantisation) is None or not self.quantised_weights:
            return np.full(len(parameters), size)
        share = self.quantised_parameters(layout) / np.maximum(parameters, 1.0)
        return size - share * (size - quantisation.gathered_weight)

    def state_share(self, layout: Layout, sharding: Sharding, stride: int | None = None) -> float:
        """The share of its parameters' state that a device keeps and updates.

        Of those that devices so far apart (N_TP by default) keep too.
        """
        degrees = self.degrees
        replicas = degrees.dp_shard * degrees.cp * self.tp // (stride or self.tp)
        keepers = replicas * (1 + len(layout.copies))
        return 1.0 if sharding is Sharding.NONE else 1 / keepers

    def state_parameters(self, layout: Layout, sharding: Sharding) -> Seconds:
        """For each pipeline rank, the parameters whose state a device keeps and updates."""
        parameters = np.zeros(layout.pp)
        for stride, each in self.by_stride(layout).items():
            parameters += self.state_share(layout, sharding, stride) * layout.sums(each)
        return parameters

    @of_any_size
    @once_for_stages
    def links(self, layout: Layout) -> Links:
        """The links that communication crosses."""
        return Links(
            self.cluster,
            self.implementation,
            self.placement(layout),
            self.by_stride(layout),
        )

    @once_for_stages
    def unit_seconds(self, layout: Layout) -> UnitSeconds:
        """Seconds of the passes of each unit."""
        return unit_seconds(self, self.layers(layout))

    @once_for_stages
    def unit_launches(self, layout: Layout) -> UnitSeconds:
        """Seconds in which the host launches the kernels of each unit's passes."""
        return unit_launches(self, self.layers(layout))

    @property
    def dispatch_seconds(self) -> float:
        """Seconds in which the host dispatches a task; of those in a CUDA graph, none."""
        usual, measured = self.implementation, self.cluster.device.dispatch_seconds
        if not usual.dispatch_seconds or usual.cuda_graphs:
            return 0.0
        return usual.dispatch_seconds if measured is None else measured

    def costs(self, graph: TaskGraph) -> Costs:
        """The costs of each task of the graph."""
        return self._within_power(graph).costs

    def times(self, graph: TaskGraph) -> Times:
        """When each task starts and ends, by the compiled engine, within the power limit."""
        costs, known = self._within_power(graph)
        return known or times(graph, costs)

    def step_time(self, graph: TaskGraph) -> float:
        """When the last task ends, in seconds."""
        return float(self.times(graph).end.max())

    def _within_power(self, graph: TaskGraph) -> WithinPower:
        costs = PhysicalStep(self, self._with_exchanges(graph)).costs()
        least = self._least_seconds(graph.layout, trains=graph.trains)
        if self.dispatch_seconds:
            least = max(least, HostStep(self, graph).seconds())
        return within_power(graph, costs, least)

    def _with_exchanges(self, graph: TaskGraph) -> TaskGraph:
        """The graph with the exchanges of experts inside passes, if some are in fused blocks."""
        routing = self.execution.routing
        blocked = self.degrees.ep > 1 and not (routing.beside_shared or routing.interleaved)
        if graph.templates or not blocked or (graph.block == NONE).all():
            return graph
        from bfpp.sim.pieces import with_exchanges

        return with_exchanges(graph, self)

    def _least_seconds(self, layout: Layout, *, trains: bool = True) -> float:
        """Seconds that the power limit asks for, at least, for a step."""
        narrow = None if (quantised := self.execution.quantisation) is None else quantised.format
        flops = self.hardware_flops(layout, trains=trains)
        return least_seconds(self.cluster.device, flops, narrow)

    def shortest_step(self, layout: Layout) -> float:
        """Seconds that a step takes at least: those of the busiest rank, and of the power limit.

        Of ranks that share stages, one has at least half of the micro-batches.
        """
        units = self.unit_seconds(layout)
        if self.degrees.ep > 1:  # in fused blocks, exchanges may be hidden
            units = unit_seconds(self, self.layers(layout), communicates=False)
        passes = units.forward + units.backward_input + units.backward_weight
        busiest = layout.sums(passes).max() * layout.whole_microbatches / (1 + len(layout.copies))
        within = (1 - TOLERANCE) * self._least_seconds(layout)
        return (1 - ROUNDING) * max(float(busiest), within)


@dataclass(frozen=True, eq=False)
class PhysicalStep:
    """A training step while its tasks are priced."""

    physical: PhysicalCosts
    graph: TaskGraph

    def __post_init__(self) -> None:
        if self.graph.communication.hybrid != self.physical.degrees.is_hybrid:
            groups = self.physical.degrees.dp_replicate
            raise InvalidConfiguration("dp_replicate", f"the task graph is not for {groups} groups")
        model = self.physical.model
        if self.graph.communication.tied_embeddings and not model.tied_embeddings:
            reason = f"{model.name}'s output layer has weights of its own"
            raise InvalidConfiguration("tied_embeddings", reason)

    @property
    def links(self) -> Links:
        """The links that communication crosses."""
        return self.physical.links(self.graph.layout)

    @property
    def parameter_bytes(self) -> ParameterBytes:
        """What is kept of each parameter."""
        return self.physical.parameter_bytes(self.graph.communication.sharding)

    def costs(self) -> Costs:
        """The costs of each task, at full clocks."""
        graph = self.graph
        of_kinds, received, sent = self.of_kinds()
        costs = of_kinds.of(graph.kinds.of_task)
        if graph.templates:
            costs = replace(costs, seconds=self._in_pieces(costs.seconds))
        WORK.loop(cost_kernels, "lengthen", len(graph))(
            graph.kinds.of_task, *graph.dependencies, received, sent, costs.seconds
        )
        return costs

    def _in_pieces(self, seconds: Seconds) -> Seconds:
        """The seconds of pieces; those of passes in blocks, which exchange while others compute.

        Exchanging takes some of the multiprocessors from what computes in its block.
        """
        graph, inside = self.graph, np.zeros(len(self.graph))
        in_block = np.flatnonzero(graph.is_compute & (graph.block != NONE)).astype(np.int32)
        exchanged = self._exchanged_inside(in_block)
        inside[in_block] = np.where(graph.piece[in_block] == NONE, exchanged, 0.0)
        seconds = seconds.copy()
        seconds[in_block] += taken_by_exchanges(self.physical) * exchanged
        return in_turns(graph, seconds * shares(graph), inside, self._seconds_alone)

    @property
    def hidden_bytes(self) -> float:
        """Bytes of the hidden state of a micro-batch, or of a slice of it."""
        return self.physical.execution.hidden_bytes / self.graph.layout.slices

    @property
    def _gathered(self) -> float:
        """Bytes that a step gathers when it receives: none where it computes with its share."""
        return 0.0 if self.physical.execution.sequence_parallel else self.hidden_bytes

    def of_kinds(self) -> Beside:
        """What each kind of task costs: known of other graphs on the same stages."""
        graph, physical = self.graph, self.physical
        cells, others = graph.kinds.cells, graph.kinds.others
        stages, templates = graph.layout.stages_on_ranks, tuple(graph.templates.items())
        overlap = graph.communication.pp_overlap
        of_cells = stages, cells.codes, overlap, templates
        if of_cells not in physical.cells:
            physical.cells[of_cells] = self.links.beside_compute(
                cells, self.alone(cells), self._gathered, overlap=overlap
            )
        of_others = stages, others.codes, graph.communication
        physical = physical.one_sample
        if of_others not in physical.others:
            physical.others[of_others] = PhysicalStep(physical, graph).alone(others)
        return self.physical.cells[of_cells].and_others(physical.others[of_others])

    def alone(self, kinds: SomeKinds) -> Costs:
        """The costs of some kinds of tasks if nothing else were under way."""
        seconds, moved = np.zeros((2, len(kinds.first)))
        ports = np.full((len(kinds.first), self.links.width), NONE, dtype=np.int32)
        for operation, chosen in kinds.by_operation():
            load = PRICES[operation].physical_load(self, kinds.first[chosen])
            seconds[chosen], moved[chosen], ports[chosen] = load
        if self.graph.templates:
            seconds += inside_passes(self.graph, self._seconds_alone)[kinds.place]
        return Costs(seconds, moved, ports, self.links.port_bandwidth)

    def _seconds_alone(self, operation: Operation, tasks: Integers) -> Seconds:
        """Seconds of tasks that have their ports to themselves."""
        load = PRICES[operation].physical_load(self, tasks)
        ports = np.broadcast_to(load.ports, (len(tasks), self.links.width))
        rate = narrowest(self.links.port_bandwidth, ports)
        seconds: Seconds = np.broadcast_to(load.seconds + load.bytes / rate, len(tasks))
        return seconds

    def gathered(self, tasks: Integers) -> Exchanged:
        """What all-gathers exchange."""
        layout, sharding = self.graph.layout, self.graph.communication.sharding
        sizes = self.physical.gathered_bytes(layout, sharding)
        return Exchanged(self.links.shared, sizes[self.graph.unit[tasks]], Way.ALL_GATHER)

    def reduced(self, tasks: Integers) -> Exchanged:
        """What reductions exchange."""
        unsharded = self.graph.communication.sharding is Sharding.NONE
        sizes = np.full(len(tasks), self.parameter_bytes.gradients)
        way = Way.ALL_REDUCE if unsharded else Way.REDUCE_SCATTER
        return Exchanged(self.links.shared, sizes, way)

    def all_reduced(self, tasks: Integers) -> Exchanged:
        """What all-reduces across groups of replicas exchange."""
        sizes = np.full(len(tasks), self.parameter_bytes.gradients)
        return Exchanged(self.links.replicated, sizes, Way.ALL_REDUCE)

    @property
    def tied_bytes(self) -> float:
        """What two devices exchange of the tied embedding's gradients: their share, if sharded.

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

    def passes(self, tasks: Integers, *parts: str) -> Load:
        """Passes of micro-batches through units, by their parts; of slices, an equal share.

        What they exchange between experts is in that, unless it is priced by itself.
        """
        layout = self.graph.layout
        units = self.physical.unit_seconds(layout)
        by_unit = sum(getattr(units, part) for part in parts) / layout.slices
        return Load(by_unit[self.graph.unit[tasks]] - self._exchanged_inside(tasks))

    def host_copies(self, tasks: Integers) -> Load:
        """What is offloaded of units' activations, to the host or back."""
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

    def _exchanged_inside(self, tasks: Integers) -> Seconds:
        """Seconds of the exchanges that are pieces of the tasks' passes."""
        seconds = np.zeros(len(tasks))
        for (operation, unit), template in self.graph.templates.items():
            exchanged = sum(
                self._exchange_seconds[piece.operation]
                for piece in template
                if piece.operation.row.stream is EXPERTS
            )
            of_pass = (self.graph.operation[tasks] == operation) & (self.graph.unit[tasks] == unit)
            seconds[of_pass] = exchanged
        return seconds

    def state_traffic(self, tasks: Integers, traffic: float) -> Load:
        """Tasks that move `traffic` bytes for each parameter of a rank's state."""
        layout, sharding = self.graph.layout, self.graph.communication.sharding
        parameters = self.physical.state_parameters(layout, sharding)
        seconds = self._traffic_seconds(parameters * traffic)
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


class HostStep(PhysicalStep):
    """The same step as its hosts see it: passes take what it takes to launch their kernels."""

    def passes(self, tasks: Integers, *parts: str) -> Load:
        """Passes of micro-batches through units, by their parts."""
        layout = self.graph.layout
        units = self.physical.unit_launches(layout)
        by_unit = sum(getattr(units, part) for part in parts) / layout.slices
        return Load(by_unit[self.graph.unit[tasks]])

    def seconds(self) -> float:
        """Seconds of the busiest rank's host, which also dispatches the tasks of all its lanes."""
        graph = self.graph
        launching = np.zeros(len(graph))
        for operation, tasks in graph.by_operation():
            if operation in compute_steps():
                launching[tasks] = PRICES[operation].physical_load(self, tasks).seconds
        launched = np.bincount(graph.rank, launching, graph.layout.pp)
        dispatched = self.physical.dispatch_seconds * np.diff(graph.rank_tasks.start)
        return float((launched + dispatched).max())


@of_any_size
@once_for_stages
def rank_parameters(physical: PhysicalCosts, layout: Layout) -> Seconds:
    """For each pipeline rank, its parameters on one device."""
    total: Seconds = sum(map(layout.sums, physical.by_stride(layout).values()), np.zeros(()))
    return total

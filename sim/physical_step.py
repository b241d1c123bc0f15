"""A training step while its tasks are priced: on its devices, and as their hosts see it.

Rules:

- A compute step takes the seconds of `bfpp.sim.compute`, on every device of a
  tensor-parallel group alike, and longer for the communication that it overlaps.
- Transfers, gathers and reductions are those of `bfpp.sim.links`.
- The optimizer's update moves the rank's share of the state through memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from bfpp.schedules import InvalidConfiguration, Sharding, TaskGraph
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.composite import shares
from bfpp.schedules.kinds import SomeKinds
from bfpp.schedules.operations import OPERATIONS, Operation, compute_steps
from bfpp.schedules.streams import EXPERTS
from bfpp.sim import cost_kernels
from bfpp.sim.compiled_graph import work_out_kinds
from bfpp.sim.compiling import WORK
from bfpp.sim.compute import UnitSeconds, exchange_seconds, parts, taken_by_exchanges
from bfpp.sim.costs import Costs, Load, in_turns, inside_passes, narrowest
from bfpp.sim.host_links import with_host_links
from bfpp.sim.implementation import ParameterBytes
from bfpp.sim.links import Beside, Exchanged, Links
from bfpp.sim.offloading import host_copy_seconds
from bfpp.sim.operators import Way
from bfpp.sim.prices import PRICES

if TYPE_CHECKING:
    from bfpp.sim.physical import PhysicalCosts


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

    @cached_property
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
        work_out_kinds(graph)
        cells, others = self._of_cells(), self._of_others()
        seconds, moved = np.empty((2, len(graph)))
        ports = np.empty((len(graph), cells.costs.ports.shape[1]), dtype=np.int32)
        WORK.loop(cost_kernels, "price", len(graph))(
            graph.kinds.of_task,
            *graph.dependencies,
            cells.columns,
            others.columns,
            self._seconds_of_tasks(cells, others),
            seconds,
            moved,
            ports,
        )
        return Costs(seconds, moved, ports, cells.costs.bandwidth)

    def _seconds_of_tasks(self, cells: Beside, others: Beside) -> Seconds | None:
        """The seconds of tasks where those of one kind differ."""
        interleaved = self.physical.degrees.ep > 1 and self.physical.execution.routing.interleaved
        if not (self.graph.templates or interleaved):
            return None
        of_kinds = np.concatenate((cells.costs.seconds, others.costs.seconds))
        seconds: Seconds = of_kinds.take(self.graph.kinds.of_task)
        if self.graph.templates:
            seconds = self._in_pieces(seconds)
        return self._with_nothing_beside(seconds) if interleaved else seconds

    def _in_pieces(self, seconds: Seconds) -> Seconds:
        """The seconds of pieces; those of passes in blocks, which exchange while others compute.

        Exchanging takes some of the multiprocessors from what computes in its block.
        """
        graph, inside = self.graph, np.zeros(len(self.graph))
        in_block = np.flatnonzero(graph.is_compute & (graph.block != NONE)).astype(np.int32)
        if not len(in_block):
            return seconds * shares(graph)
        exchanged = self._exchanged_inside(in_block)
        inside[in_block] = np.where(graph.piece[in_block] == NONE, exchanged, 0.0)
        seconds = seconds.copy()
        seconds[in_block] += taken_by_exchanges(self.physical) * exchanged
        return in_turns(graph, seconds * shares(graph), inside, self._seconds_alone)

    def _with_nothing_beside(self, seconds: Seconds) -> Seconds:
        """The seconds of tasks, where passes wait for exchanges that no other micro-batch hides.

        Exchanges are hidden by a pass of the other kind: not before a rank's first backward pass,
        nor after its last forward pass.
        """
        graph, layout = self.graph, self.graph.layout
        number = np.arange(len(graph))
        forward = graph.operation == Operation.FORWARD
        backward = np.isin(graph.operation, (Operation.BACKWARD, Operation.BACKWARD_INPUT))
        first, last = np.full(layout.pp, len(graph)), np.full(layout.pp, NONE)
        np.minimum.at(first, graph.rank[backward], number[backward])
        np.maximum.at(last, graph.rank[forward], number[forward])
        hidden = self.physical.unit_seconds(layout)
        exposed = self.physical.not_interleaved.unit_seconds(layout)
        seconds = seconds.copy()
        for part, alone in (
            ("forward", forward & (number < first[graph.rank])),
            ("backward_input", backward & (number > last[graph.rank])),
        ):
            longer = getattr(exposed, part) - getattr(hidden, part)
            seconds[alone] += longer[graph.unit[alone]] / layout.slices
        return seconds

    @property
    def hidden_bytes(self) -> float:
        """Bytes of the hidden state of a micro-batch, or of a slice of it."""
        return self.physical.execution.hidden_bytes / self.graph.layout.slices

    @property
    def _gathered(self) -> float:
        """Bytes that a step gathers when it receives: none where it computes with its share."""
        return 0.0 if self.physical.execution.sequence_parallel else self.hidden_bytes

    def _of_cells(self) -> Beside:
        """What each kind of a micro-batch's tasks costs: known of other graphs on these stages."""
        graph, known = self.graph, self.physical.cells
        kinds, overlap = graph.kinds.cells, graph.communication.pp_overlap
        decisive = (
            graph.layout.stages_on_ranks,
            kinds.codes,
            overlap,
            graph.communication.offload > 0,
            tuple(graph.templates.items()),
        )
        if decisive not in known:
            found = self.links.beside_compute(
                kinds, self.alone(kinds), overlap=overlap, gathered=self._gathered
            )
            known[decisive] = found._replace(costs=self._with_host_links(kinds, found.costs))
        return known[decisive]

    def _of_others(self) -> Beside:
        """The same of all other kinds: known, too, of micro-batches of other sizes."""
        graph, physical = self.graph, self.physical.one_sample
        kinds, known = graph.kinds.others, physical.others
        decisive = graph.layout.stages_on_ranks, kinds.codes, graph.communication
        if decisive not in known:
            alone = self._with_host_links(kinds, PhysicalStep(physical, graph).alone(kinds))
            known[decisive] = self.links.beside_compute(kinds, alone, overlap=self._slows_passes)
        return known[decisive]

    @property
    def _slows_passes(self) -> bool:
        """Whether gathers and reductions slow passes: not those that run in a pipeline's bubbles.

        There they run once a step, at its ends.
        """
        communication = self.graph.communication
        has_bubbles = self.graph.layout.pp > 1 and communication.sharding is not Sharding.FULL
        return communication.dp_overlap and not has_bubbles

    def _with_host_links(self, kinds: SomeKinds, costs: Costs) -> Costs:
        devices = self.physical.devices(self.graph.layout)
        return with_host_links(self.graph, kinds, costs, self.physical.cluster, devices)

    def alone(self, kinds: SomeKinds) -> Costs:
        """The costs of some kinds of tasks if nothing else were under way."""
        seconds, moved = np.zeros((2, len(kinds.first)))
        ports = np.full((len(kinds.first), self.links.routes.width), NONE, dtype=np.int32)
        for operation, chosen in kinds.by_operation():
            load = PRICES[operation].physical_load(self, kinds.first[chosen])
            seconds[chosen], moved[chosen], ports[chosen] = load
        if self.graph.templates:
            seconds += inside_passes(self.graph, self._seconds_alone)[kinds.place]
        return Costs(seconds, moved, ports, self.links.routes.port_bandwidth)

    def _seconds_alone(self, operation: Operation, tasks: Integers) -> Seconds:
        """Seconds of tasks that have their ports to themselves."""
        load = PRICES[operation].physical_load(self, tasks)
        ports = np.broadcast_to(load.ports, (len(tasks), self.links.routes.width))
        rate = narrowest(self.links.routes.port_bandwidth, ports)
        seconds: Seconds = np.broadcast_to(load.seconds + load.bytes / rate, len(tasks))
        return seconds

    @property
    def gathered(self) -> Exchanged:
        """What all-gathers exchange."""
        sizes = self.physical.gathered_bytes(self.graph.layout, self.graph.communication.sharding)
        return Exchanged(self.links.shared, sizes, Way.ALL_GATHER)

    @property
    def reduced(self) -> Exchanged:
        """What reductions exchange."""
        unsharded = self.graph.communication.sharding is Sharding.NONE
        way = Way.ALL_REDUCE if unsharded else Way.REDUCE_SCATTER
        return Exchanged(self.links.shared, self.parameter_bytes.gradients, way)

    @property
    def all_reduced(self) -> Exchanged:
        """What all-reduces across groups of replicas exchange."""
        gradients = self.parameter_bytes.gradients
        return Exchanged(self.links.replicated, gradients, Way.ALL_REDUCE)

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
        units = self.physical.unit_seconds(self.graph.layout)
        seconds = self._of_units(units, tasks, parts)
        return Load(seconds - self._exchanged_inside(tasks) if self.graph.templates else seconds)

    def _of_units(self, units: UnitSeconds, tasks: Integers, parts: Sequence[str]) -> Seconds:
        """The sum of some parts of passes, for each task."""
        seconds = units.summed(*parts).take(self.graph.unit.take(tasks))
        return seconds / self.graph.layout.slices

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
        graph = self.graph
        seconds = np.zeros((len(OPERATIONS), graph.layout.units + 1))
        for of_pass, template in graph.templates.items():
            seconds[of_pass] = sum(
                self._exchange_seconds[piece.operation]
                for piece in template
                if piece.operation.row.stream is EXPERTS
            )
        found: Seconds = seconds[graph.operation[tasks], graph.unit[tasks]]
        return found

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
        return Load(self._of_units(self.physical.unit_launches(self.graph.layout), tasks, parts))

    def seconds(self) -> float:
        """Seconds of the busiest rank's host, which also dispatches the tasks of all its lanes.

        A pass in pieces is dispatched, and its kernels are launched, once.
        """
        graph, ranks = self.graph, self.graph.layout.pp
        share = np.where(graph.is_pass & ~graph.is_compute, 0.0, shares(graph))
        launching = np.zeros(len(graph))
        for operation, tasks in graph.by_operation():
            if operation in compute_steps():
                launching[tasks] = PRICES[operation].physical_load(self, tasks).seconds
        start, task = graph.rank_tasks
        rank = np.repeat(np.arange(ranks), np.diff(start))
        launched = np.bincount(graph.rank, launching * share, ranks)
        dispatched = self.physical.dispatch_seconds * np.bincount(rank, share[task], ranks)
        return float((launched + dispatched).max())

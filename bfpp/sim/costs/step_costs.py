"""Costs of a training step's tasks, by their rows of `PRICES`: on devices and on hosts.

Tasks of one kind cost the same, so each kind is priced once, and the prices are kept for other
graphs on the same stages: those of a micro-batch's tasks however parameters are sharded, all others
whatever the size of micro-batches. Only fused blocks, passes in pieces and exchanges that
another micro-batch hides differ between tasks of one kind.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from bfpp.core.prices import price
from bfpp.schedules import Sharding
from bfpp.schedules.columns import NONE, Integers, Seconds
from bfpp.schedules.graph.composite_tasks import shares
from bfpp.schedules.graph.task_kinds import SomeKinds
from bfpp.schedules.operations.operations import Operation, compute_steps
from bfpp.sim.costs.communication.host_links import with_host_links
from bfpp.sim.costs.communication.links import Beside
from bfpp.sim.costs.physical_step import HostStep, PhysicalStep
from bfpp.sim.costs.prices import PRICES
from bfpp.sim.costs.units.seconds import taken_by_exchanges
from bfpp.sim.engines.cost_model import Costs, in_turns, inside_passes, narrowest


class StepPrices(NamedTuple):
    """Costs of the kinds of a step's tasks, and the tasks' own seconds where these differ."""

    cells: Beside
    others: Beside
    own: Seconds | None


def step_prices(step: PhysicalStep) -> StepPrices:
    """The costs of each kind of task, at full clocks."""
    cells, others = _of_cells(step), _of_others(step)
    return StepPrices(cells, others, _seconds_of_tasks(step, cells, others))


def step_costs(step: PhysicalStep) -> Costs:
    """The costs of each task, at full clocks."""
    graph, (cells, others, own) = step.graph, step_prices(step)
    seconds, moved = np.empty((2, len(graph)))
    ports = np.empty((len(graph), cells.costs.ports.shape[1]), dtype=np.int32)
    of_tasks = graph.kinds.of_task, *graph.dependencies
    price(*of_tasks, cells.columns, others.columns, own, seconds, moved, ports)
    return Costs(seconds, moved, ports, cells.costs.bandwidth)


def _of_cells(step: PhysicalStep) -> Beside:
    """Costs of each kind of a micro-batch's tasks, cached for other graphs on these stages."""
    graph, known = step.graph, step.physical.cells
    kinds, overlap = graph.kinds.cells, graph.communication.pp_overlap
    decisive = (
        graph.layout.stages_on_ranks,
        kinds.codes,
        overlap,
        graph.communication.offload > 0,
        step.waiting_factor,
        tuple(graph.templates.items()),
    )
    if decisive not in known:
        # A step that computes with its share of the hidden state gathers nothing on receiving.
        gathered = 0.0 if step.physical.execution.sequence_parallel else step.hidden_bytes
        beside = step.links.beside_compute(
            kinds, costs_alone(step, kinds), overlap=overlap, gathered=gathered
        )
        known[decisive] = beside._replace(costs=_with_host_links(step, kinds, beside.costs))
    return known[decisive]


def _of_others(step: PhysicalStep) -> Beside:
    """Costs of all other kinds, cached for micro-batches of other sizes too."""
    graph, physical = step.graph, step.physical.one_sample
    kinds, known = graph.kinds.others, physical.others
    decisive = graph.layout.stages_on_ranks, kinds.codes, graph.communication
    if decisive not in known:
        alone = costs_alone(PhysicalStep(physical, graph), kinds)
        alone = _with_host_links(step, kinds, alone)
        known[decisive] = step.links.beside_compute(kinds, alone, overlap=_slows_passes(step))
    return known[decisive]


def _slows_passes(step: PhysicalStep) -> bool:
    """True if gathers and reductions slow passes: not those in a pipeline's bubbles.

    There they run once a step, at its ends.
    """
    communication = step.graph.communication
    has_bubbles = step.graph.layout.pp > 1 and communication.sharding is not Sharding.FULL
    return communication.dp_overlap and not has_bubbles


def _with_host_links(step: PhysicalStep, kinds: SomeKinds, costs: Costs) -> Costs:
    devices = step.physical.devices(step.graph.layout)
    return with_host_links(step.graph, kinds, costs, step.physical.cluster, devices)


def costs_alone(step: PhysicalStep, kinds: SomeKinds) -> Costs:
    """The costs of some kinds of tasks if nothing else were under way."""
    seconds, moved = np.zeros((2, len(kinds.first)))
    routes = step.links.routes
    ports = np.full((len(kinds.first), routes.width), NONE, dtype=np.int32)
    for operation, chosen in kinds.by_operation():
        load = PRICES[operation].physical_load(step, kinds.first[chosen])
        seconds[chosen], moved[chosen], ports[chosen] = load
    if step.graph.templates:
        seconds += inside_passes(step.graph, partial(_seconds_alone, step))[kinds.place]
    return Costs(seconds, moved, ports, routes.port_bandwidth)


def _seconds_alone(step: PhysicalStep, operation: Operation, tasks: Integers) -> Seconds:
    """Seconds of tasks that have their ports to themselves."""
    load = PRICES[operation].physical_load(step, tasks)
    ports = np.broadcast_to(load.ports, (len(tasks), step.links.routes.width))
    rate = narrowest(step.links.routes.port_bandwidth, ports)
    seconds: Seconds = np.broadcast_to(load.seconds + load.bytes / rate, len(tasks))
    return seconds


def _seconds_of_tasks(step: PhysicalStep, cells: Beside, others: Beside) -> Seconds | None:
    """The seconds of tasks where those of one kind differ."""
    interleaved = step.physical.degrees.ep > 1 and step.physical.execution.routing.interleaved
    if not (step.graph.templates or interleaved):
        return None
    of_kinds = np.concatenate((cells.costs.seconds, others.costs.seconds))
    seconds: Seconds = of_kinds.take(step.graph.kinds.of_task)
    if step.graph.templates:
        seconds = _in_pieces(step, seconds)
    return _with_exposed_exchanges(step, seconds) if interleaved else seconds


def _in_pieces(step: PhysicalStep, seconds: Seconds) -> Seconds:
    """The seconds of pieces; those of passes in blocks, which exchange while others compute.

    Exchanging takes some of the multiprocessors from what computes in its block.
    """
    graph, inside = step.graph, np.zeros(len(step.graph))
    in_block = np.flatnonzero(graph.is_compute & (graph.block != NONE)).astype(np.int32)
    if not len(in_block):
        return seconds * shares(graph)
    exchanged = step.exchanged_inside(in_block)
    inside[in_block] = np.where(graph.piece[in_block] == NONE, exchanged, 0.0)
    seconds = seconds.copy()
    seconds[in_block] += taken_by_exchanges(step.physical) * exchanged
    return in_turns(graph, seconds * shares(graph), inside, partial(_seconds_alone, step))


def _with_exposed_exchanges(step: PhysicalStep, seconds: Seconds) -> Seconds:
    """The seconds of tasks, with the exchanges that no other micro-batch's pass hides.

    Exchanges are hidden by a pass of the other kind: not before a rank's first backward pass,
    nor after its last forward pass.
    """
    graph, layout = step.graph, step.graph.layout
    number = np.arange(len(graph))
    forward = graph.operation == Operation.FORWARD
    backward = np.isin(graph.operation, (Operation.BACKWARD, Operation.BACKWARD_INPUT))
    first, last = np.full(layout.pp, len(graph)), np.full(layout.pp, NONE)
    np.minimum.at(first, graph.rank[backward], number[backward])
    np.maximum.at(last, graph.rank[forward], number[forward])
    hidden = step.physical.unit_seconds(layout)
    exposed = step.physical.not_interleaved.unit_seconds(layout)
    seconds = seconds.copy()
    for part, alone in (
        ("forward", forward & (number < first[graph.rank])),
        ("backward_input", backward & (number > last[graph.rank])),
    ):
        longer = getattr(exposed, part) - getattr(hidden, part)
        seconds[alone] += step.waiting_factor * longer[graph.unit[alone]] / layout.slices
    return seconds


def host_seconds(step: HostStep) -> float:
    """Seconds of the busiest rank's host, which also dispatches the tasks of all its lanes.

    A pass in pieces is dispatched, and its kernels are launched, once.
    """
    graph, ranks = step.graph, step.graph.layout.pp
    share = np.where(graph.is_pass & ~graph.is_compute, 0.0, shares(graph))
    launching = np.zeros(len(graph))
    for operation, tasks in graph.by_operation():
        if operation in compute_steps():
            launching[tasks] = PRICES[operation].physical_load(step, tasks).seconds
    start, task = graph.rank_tasks
    rank = np.repeat(np.arange(ranks), np.diff(start))
    launched = np.bincount(graph.rank, launching * share, ranks)
    dispatched = step.physical.dispatch_seconds * np.bincount(rank, share[task], ranks)
    return float((launched + dispatched).max())

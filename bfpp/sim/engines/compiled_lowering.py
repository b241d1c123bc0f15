"""The lowering of large graphs and of many small ones: by compiled loops, once that pays.

What `bfpp.schedules.lowering` makes, array by array: that one says the rules, in calls of
numpy, which are the same few hundred for each small graph, and many passes over a large one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from bfpp.schedules import (
    Communication,
    Layout,
    Order,
    Schedule,
    Sharding,
    TaskGraph,
    find_schedule,
)
from bfpp.schedules import build_graph as build_by_columns
from bfpp.schedules.columns import NONE, Flags, Groups, Integers, Offsets
from bfpp.schedules.families.in_sequences import InSequences
from bfpp.schedules.families.registry import is_built_in
from bfpp.schedules.graph.lanes import Lane
from bfpp.schedules.lowering import lower_steps as lower_by_columns
from bfpp.schedules.lowering.draft import Begins
from bfpp.schedules.lowering.offloading import require_backward
from bfpp.schedules.lowering.passes import PAIR, ends_of_tied
from bfpp.schedules.lowering.posting import posted
from bfpp.schedules.lowering.step_table import Steps, step_table
from bfpp.schedules.operations.operations import OPERATIONS
from bfpp.schedules.operations.streams import STREAMS
from bfpp.schedules.orders.posts import Post
from bfpp.schedules.orders.steps import STEP
from bfpp.sim.engines.loops import lowering_kernels, order_kernels
from bfpp.sim.engines.loops.compiling import WORK, compiled

PLACED = 4096
"""Number of cached sets of lanes."""

NO_LENGTH = 0
"""The length of runs that may have any."""


def build_graph(
    schedule: str | Schedule,
    layout: Layout,
    communication: Communication | None = None,
    *,
    evaluates: bool = False,
) -> TaskGraph:
    """The task graph of a schedule, or of the one of that name.

    If it `evaluates`, of the schedule's forward passes alone. Raises `InvalidConfiguration` where
    the schedule cannot run on the layout. Compiled loops make it if simulating it will load them.

    >>> import bfpp
    >>> bfpp.build_graph("breadth-first", bfpp.Layout(4, 8, loops=2))
    <TaskGraph breadth-first: Layout(4, 8, loops=2), 252 tasks>
    """
    known = find_schedule(schedule) if isinstance(schedule, str) else schedule
    if evaluates or not WORK.pays_for(layout.tasks):
        return build_by_columns(known, layout, communication, evaluates=evaluates)
    WORK.expect(layout.tasks)
    graph = lower_steps(
        steps_of(known, layout), layout, communication or Communication(), known.name, known.posts
    )
    return graph.checked() if is_built_in(known) else graph


def steps_of(schedule: Schedule, layout: Layout) -> Steps:
    """The table of a schedule's steps; raises `InvalidConfiguration` where they cannot run."""
    if WORK.pays and _is_in_sequences(schedule):
        schedule.require(layout)
        if steps := _table(*_in_sequences(schedule, layout), layout):
            return steps
    return join(schedule.orders(layout), layout)


def join(orders: Sequence[Order], layout: Layout) -> Steps:
    """The table of all steps; raises `InvalidConfiguration` where they cannot run."""
    steps = None
    if WORK.pays:
        # As bytes: numpy copies the fields of each order one by one.
        joined = bytearray().join(each.astype(STEP, copy=False).tobytes() for each in orders)
        steps = _table(np.frombuffer(joined, STEP), np.cumsum([0, *map(len, orders)]), layout)
    return step_table(orders, layout) if steps is None else steps


def lower_steps(
    steps: Steps,
    layout: Layout,
    communication: Communication,
    name: str,
    posts: Sequence[Sequence[Post]] = (),
) -> TaskGraph:
    """The task graph of orders that have been joined."""
    # Copies that gather and reduce run by run are lowered there alone: few are searched.
    if not WORK.pays or (layout.copies and communication.sharding is Sharding.FULL):
        return lower_by_columns(steps, layout, communication, name, posts)
    decisive = _decisive(communication, bool(layout.copies), len(OPERATIONS))
    if communication.offload:
        require_backward(steps)
    return posted(*_lower(steps, layout, communication, name, *decisive), posts)


def _is_in_sequences(schedule: Schedule) -> TypeGuard[InSequences]:
    """True if a schedule has the steps of that class, and none of its own."""
    known = type(schedule).steps, type(schedule).orders
    return known == (InSequences.steps, InSequences.orders)


def _in_sequences(schedule: InSequences, layout: Layout) -> tuple[Order, Offsets]:
    """The orders of all ranks, one after the other, and where each one's begins."""
    ahead = np.array([max(schedule.ahead(layout, rank), 0) for rank in range(layout.pp)])
    stages, microbatches = layout.stages_by_rank, layout.microbatches
    bounds = 2 * microbatches * stages.start
    orders = np.zeros(bounds[-1], STEP)
    columns = (orders[field] for field in ("operation", "stage", "microbatch"))
    sequence = schedule.sequence_of(layout)
    compiled(order_kernels).in_sequences(
        stages.member, stages.start, microbatches, sequence, ahead, *columns
    )
    return orders, bounds


def _table(orders: Order, bounds: Offsets, layout: Layout) -> Steps | None:
    """The table, or nothing where orders cannot run: `step_table` says why."""
    loops = compiled(order_kernels)
    order = tuple(orders[field] for field in ("operation", "stage", "microbatch", "fused"))
    placements = np.array([layout.placement, *layout.copies], dtype=np.int32)
    if not loops.can_run(*order, bounds, placements, layout.microbatches, layout.slices):
        return None
    units = np.array(layout.units_per_stage, dtype=np.int32)
    columns = np.empty((5, int(units[order[1]].sum())), dtype=np.int32)
    unit_bounds = np.empty_like(bounds)
    loops.expand(order, bounds, units, np.cumsum(units) - units, columns, unit_bounds)
    operation, rank, unit, microbatch, block = columns
    before, rounds = np.empty((2, len(rank)), dtype=np.int32)
    loops.find_inputs(operation, unit, microbatch, layout.units, layout.microbatches, before)
    if not loops.find_rounds(before, block, unit_bounds, rounds):
        return None
    return Steps(operation, rank, unit, microbatch, before, block, unit_bounds, rounds)


def _lower(
    steps: Steps,
    layout: Layout,
    communication: Communication,
    name: str,
    rules: tuple[int, ...],
    streams: tuple[Integers, Integers, Flags],
) -> tuple[TaskGraph, Begins]:
    stages = (
        layout.rank_of_unit, layout.unit_on_rank, layout.peer_of_rank, len(layout.copies),
        (*ends_of_tied(layout, communication), NONE, NONE)[:PAIR],
    )  # fmt: skip
    made = compiled(lowering_kernels).lower(
        (*steps[:6], steps.round), steps.first_of_rank, stages, rules, streams
    )
    operation, tasks, start, member, codes, lane, peer_lane, begins = made
    rank, peer, unit, microbatch, weight_buffer, gradient_buffer, piece, block = tasks
    graph = TaskGraph(
        schedule=name,
        layout=layout,
        communication=communication,
        lanes=_lanes(codes.tobytes(), layout.pp),
        operation=operation,
        rank=rank,
        peer=peer,
        unit=unit,
        microbatch=microbatch,
        lane=lane,
        peer_lane=peer_lane,
        weight_buffer=weight_buffer,
        gradient_buffer=gradient_buffer,
        piece=piece,
        block=block,
        dependencies=Groups(start, member),
    )
    return graph, Begins(*begins.T)


@cache
def _decisive(
    communication: Communication, copies: bool, operations: int
) -> tuple[tuple[int, ...], tuple[Integers, Integers, Flags]]:
    """Choices of communication that decide tasks, their order and their lanes.

    For lanes: the stream of each of the first `operations`, here and at its peer, and which streams
    are by peer. Raises `InvalidConfiguration` for choices that exclude each other.
    """
    communication.require(copies=copies)
    rules = (
        communication.sharding is not Sharding.NONE,
        communication.gathers_runs,
        communication.reduces_runs,
        communication.run_length or NO_LENGTH,
        communication.weight_buffers,
        communication.runs_ahead,
        communication.prefetch is not None,
        not (communication.dp_overlap or communication.reduces_runs),
        communication.hybrid,
        communication.clipping,
        communication.offload,
        communication.offload_ahead,
    )
    streams = [each.streams(communication) for each in OPERATIONS[:operations]]
    here, there = np.array([[*map(STREAMS.index, each)] for each in streams], dtype=np.int32).T
    by_peer = np.array([bool(stream.toward) for stream in STREAMS])
    return rules, (here.copy(), there.copy(), by_peer)


@lru_cache(PLACED)
def _lanes(codes: bytes, ranks: int) -> tuple[Lane, ...]:
    """The lanes of these codes."""
    shape = ranks, len(STREAMS), ranks
    found: npt.NDArray[np.int64] = np.array(np.unravel_index(np.frombuffer(codes, int), shape)).T
    return tuple(
        Lane(rank, STREAMS[stream], peer if STREAMS[stream].toward else NONE)
        for rank, stream, peer in found.tolist()
    )

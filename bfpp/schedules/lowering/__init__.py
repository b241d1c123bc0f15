"""Lowering: from compute orders to the task graph, with its transfers, gathers and reductions.

**Steps.** `step_table` joins the orders of all ranks, a step for each unit, and replays them once.
The *round* of a step is its turn where every rank runs one step a turn as soon as it can. Orders in
which some rank would wait for ever are refused here, before anything else is made.

**Keys.** The core (`bfpp.core.lowering`) drafts the tasks of a table, each with a key instead of a
number: (round, phase). Within a round come first the compute steps, then what they set free, in the
order of `operation_tables.phases`: transfers, copies to the host and back, gathers, reductions
(within groups of replicas, and across them; of tied parameters), norms, the optimizer. What is made
when, and after what, is said by the rows of operations (`Row.made`, and the data that they read and
write); `operation_tables` turns these into tables, and the core knows no operation but the four
passes.

**Runs.** A run is a maximal contiguous segment of one unit among a rank's forward steps, or among
its backward steps, or as many steps of it as a run may have. Where a rank runs forward and backward
steps in turn, a run of each is under way at once. What is gathered, or reduced, once a step has
buffers of its own for each unit. Else runs take turns in two weight buffers, so that one is
gathered while another is in use, or in as many as are asked for; where runs overlap on a rank, each
pass has its own (the paper: depth-first "has twice as many reconstructed layers"). Gradients have
two buffers as well. A block waits with its first task for all that its tasks wait for, and what
waits for one of them waits for its last: its tasks begin and end as one.

**Offloading.** With `Communication.offload_ahead` of n, a reload begins with the backward pass n
before the one that needs it (n = 1: while one backward pass runs, the next one's activations come).
For the first ones of a rank, which have fewer before them, the passes before the first backward
pass count instead. The other way, a pass waits until no more than n offloads before it are
unfinished, and so does a reload that begins with it. So what a device holds is bounded by its
order, however slow the copies are.

**Numbering.** A stable sort by the key numbers the tasks in an order in which they could run: what
a task waits for is of an earlier round, or of an earlier phase of its round. The order of each lane
is that of the numbers, blocking transfers on compute lanes included. So dependencies and lanes
agree, and no graph that is numbered by keys can deadlock.

**Posting.** Keys are enough for transfers on channels. In the other modes of `P2P` queues and
groups make transfers wait for each other, in an order that keys know nothing of: `posting` adds
these waits, and numbers the tasks anew in topological order, the smallest former number first.
Where there is none, the posts deadlock, and the error names the cycle.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bfpp.core.lowering import LoweringFault, TooLate, Units
from bfpp.core.lowering import count_exchanges as count_by_core
from bfpp.core.lowering import lower as lower_by_core
from bfpp.core.orders import Steps
from bfpp.schedules.columns import Groups, Offsets
from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.graph.lanes import lanes_of
from bfpp.schedules.layout.layout import Layout
from bfpp.schedules.lowering.operation_tables import NO_ENDS, ends_of, lowering_of
from bfpp.schedules.lowering.posting import posted
from bfpp.schedules.lowering.prefetch import Begins
from bfpp.schedules.lowering.step_table import Deadlock, step_table, table_of
from bfpp.schedules.operations.operations import Operation
from bfpp.schedules.orders.posts import Post
from bfpp.schedules.orders.steps import Order
from bfpp.schedules.settings.sharding import Communication

__all__ = [
    "Deadlock",
    "Steps",
    "count_exchanges",
    "lower",
    "lower_steps",
    "step_table",
    "table_of",
]


def lower(
    orders: Sequence[Order],
    layout: Layout,
    communication: Communication,
    name: str = "orders",
    posts: Sequence[Sequence[Post]] = (),
) -> TaskGraph:
    """The task graph of each rank's compute order.

    Every stage must run each micro-batch forward and backward once, on the
    rank that holds it, or one of its copies; or all of them forward alone, for an evaluation:
    then nothing is reduced, and no weights are updated. `posts` says where each rank posts its
    sends and receives, if it is not as the communication says. Raises `Deadlock` where a rank would
    wait for ever.

    >>> import bfpp
    >>> layout = bfpp.Layout(2, 2)
    >>> orders = bfpp.find_schedule("1f1b").orders(layout)
    >>> bfpp.lower(orders, layout, bfpp.Communication(), name="mine")
    <TaskGraph mine: Layout(2, 2), 16 tasks>
    """
    return lower_steps(step_table(orders, layout), layout, communication, name, posts)


def lower_steps(
    steps: Steps,
    layout: Layout,
    communication: Communication,
    name: str,
    posts: Sequence[Sequence[Post]] = (),
) -> TaskGraph:
    """The task graph of orders that have been joined, which any communication shares."""
    tables, ties_ends = lowering_of(communication, copies=bool(layout.copies))
    if communication.offload and (steps.operation == Operation.FORWARD).all():
        raise InvalidConfiguration("offload", "an evaluation keeps no activations")
    units = _units(layout, ties_ends=ties_ends)
    try:
        lowered = lower_by_core(
            steps,
            units,
            tables,
            layout.microbatches,
            len(layout.copies),
        )
    except TooLate as late:
        raise _too_late(late, layout, communication) from None
    rank, peer, unit, microbatch, *buffers, piece, block, lane, peer_lane = lowered.columns
    weight_buffer, gradient_buffer = buffers
    graph = TaskGraph(
        schedule=name,
        layout=layout,
        communication=communication,
        lanes=lanes_of(lowered.lanes),
        operation=lowered.operation,
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
        dependencies=Groups(*lowered.dependencies),
    )
    graph.remember(lowered.kinds, lowered.flags, Groups(*lowered.followers))
    return posted(graph, Begins(*lowered.begins.T), posts)


def count_exchanges(
    steps: Steps, layout: Layout, communication: Communication
) -> tuple[Offsets, Offsets]:
    """Gathers and reductions of each unit in the task graph of these orders, without lowering them.

    Where ranks have copies of a unit, each is of both.
    """
    tables, ties_ends = lowering_of(communication, copies=bool(layout.copies))
    units = _units(layout, ties_ends=ties_ends)
    return count_by_core(steps, units, tables, layout.microbatches, len(layout.copies))


def _units(layout: Layout, *, ties_ends: bool) -> Units:
    ends = np.array(ends_of(layout) if ties_ends else NO_ENDS, dtype=np.int32)
    return Units(layout.rank_of_unit, layout.unit_on_rank, layout.peer_of_rank, ends)


def _too_late(late: TooLate, layout: Layout, communication: Communication) -> InvalidConfiguration:
    """The error for copies of a unit that use buffers in turns that cannot be."""
    prefetch = communication.prefetch
    runs_before = "1 run before" if prefetch == 1 else f"{prefetch} runs before"
    reasons = {
        LoweringFault.PREFETCH_TOO_LATE: (
            "prefetch", f"for gathers that begin no earlier than {runs_before}",
        ),
        LoweringFault.WEIGHTS_TOO_LATE: (
            "weight_buffers", f"for {communication.weight_buffers}, unless gathered once a step",
        ),
        LoweringFault.GRADIENTS_TOO_LATE: ("reduce_per", "to be reduced for each run"),
    }  # fmt: skip
    field, how = reasons[late.fault]
    unit = layout.name_of(late.unit)
    return InvalidConfiguration(field, f"the copies of {unit} are used too far apart {how}")

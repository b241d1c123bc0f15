"""From orders to the whole task graph.

Each pass adds one kind of task or dependency to a `Draft`, whose tasks carry a
key instead of a number. The key is (round, phase). A round is one turn in which
every rank that can runs one compute step; within it come first the compute
steps, then what they set free: transfers, copies to the host and back, gathers,
reductions (within groups of replicas, and across them; of tied parameters), the
optimizer.
Sorting by the key numbers the tasks in an order in which they could run, and so
also fixes the order of each lane, blocking transfers on compute lanes included:
that is why no graph made here can deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence

from bfpp.schedules.communication import Communication
from bfpp.schedules.graph import TaskGraph
from bfpp.schedules.layout import Layout
from bfpp.schedules.lowering.draft import Draft
from bfpp.schedules.lowering.offloading import add_offloads
from bfpp.schedules.lowering.passes import (
    add_all_reduces,
    add_compute,
    add_gathers,
    add_optimizer,
    add_reductions,
    add_tied_all_reduce,
    add_transfers,
)
from bfpp.schedules.lowering.posting import Post, posted
from bfpp.schedules.lowering.runs import runs_of
from bfpp.schedules.lowering.step_table import Deadlock, Steps, step_table
from bfpp.schedules.registry import find_schedule
from bfpp.schedules.steps import Order, Schedule, forward_only

__all__ = ["Deadlock", "build_graph", "lower", "lower_steps", "step_table"]


def build_graph(
    schedule: str | Schedule,
    layout: Layout,
    communication: Communication | None = None,
    *,
    evaluates: bool = False,
) -> TaskGraph:
    """The task graph of a schedule, lowered by numpy: `bfpp.build_graph` does large ones faster.

    >>> from bfpp.schedules import Layout, build_graph
    >>> build_graph("breadth-first", Layout(4, 8, loops=2))
    <TaskGraph breadth-first: Layout(4, 8, loops=2), 252 tasks>
    """
    known = find_schedule(schedule) if isinstance(schedule, str) else schedule
    orders = known.orders(layout)
    if evaluates:
        orders = [*map(forward_only, orders)]
    return lower(orders, layout, communication or Communication(), known.name)


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
    sends and receives, if they are in queues. Raises `Deadlock` where a rank would wait for ever.

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
    communication.require(copies=bool(layout.copies))
    runs = runs_of(steps, layout, communication)
    draft = Draft(layout, communication)
    add_compute(draft, steps, runs)
    add_transfers(draft, steps)
    if communication.offload:
        add_offloads(draft, steps)
    add_gathers(draft, steps, runs)
    if steps.adds_gradients.any():
        reduced = add_reductions(draft, steps, runs)
        if communication.hybrid:
            reduced = add_all_reduces(draft, reduced)
        tied = add_tied_all_reduce(draft, reduced)
        add_optimizer(draft, steps, reduced, tied)
    return posted(draft.finish(name), posts)

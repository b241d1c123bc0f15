"""Lowering: from compute orders to the task graph, with its transfers, gathers and reductions.

**Steps.** `step_table` joins the orders of all ranks, a step for each unit, and replays them once.
The *round* of a step is its turn where every rank runs one step a turn as soon as it can. Orders
in which some rank would wait for ever are refused here, before anything else is made.

**Keys.** Each pass over the table (`passes`, `offloading`) adds one kind of task, with its
dependencies, to a `Draft`. A drafted task has a key instead of a number: (round, phase). Within a
round come first the compute steps, then what they set free: transfers, copies to the host and
back, gathers, reductions (within groups of replicas, and across them; of tied parameters), norms,
the optimizer. A pass need not know which tasks others add, nor where in the graph they will be.

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

from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.layout.layout import Layout
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
from bfpp.schedules.lowering.posting import posted
from bfpp.schedules.lowering.runs import runs_of
from bfpp.schedules.lowering.step_table import Deadlock, Steps, step_table
from bfpp.schedules.orders.posts import Post
from bfpp.schedules.orders.steps import Order
from bfpp.schedules.settings.sharding import Communication

__all__ = ["Deadlock", "lower", "lower_steps", "step_table"]


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
    graph, begins = draft.finish(name)
    return posted(graph, begins, posts)

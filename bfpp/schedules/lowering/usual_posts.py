"""Default posts of sends and receives in each mode of `P2P`.

Sends are posted right after their steps; receives when their senders post (`FIFO`, `POSTED`), else
right before their steps. Nothing is posted inside a segment of steps: a block, or in `COALESCED` a
pair of a forward pass and the backward pass that directly follows it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bfpp.schedules.columns import NONE, Flags, Integers, among
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.operations.data import INPUT_GRADIENT
from bfpp.schedules.operations.operations import Operation, writers
from bfpp.schedules.orders.posts import Posts
from bfpp.schedules.settings.sharding import P2P


def usual_posts(graph: TaskGraph) -> Posts:
    """The posts of a graph in the mode of its communication.

    In a group of `COALESCED`, gradients are sent before activations and received after them, as in
    Megatron-LM; in groups of one pass there is one of each at most.
    """
    transfer = np.flatnonzero(graph.is_transfer).astype(np.int32)
    user = graph.dependents.member[graph.dependents.start[transfer]]
    ahead, last = _around_segments(graph)
    sender, receiver = graph.rank[transfer], graph.peer[transfer]
    at_once = graph.communication.p2p in (P2P.FIFO, P2P.POSTED)
    sent = last[_step_before(graph, sender, transfer)]
    received = last[_step_before(graph, receiver, transfer)] if at_once else ahead[user]
    rank, after = np.append(sender, receiver), np.append(sent, received)
    is_send = np.arange(len(rank)) < len(transfer)
    task = np.tile(transfer, 2)
    late = np.zeros_like(is_send) if at_once else ~is_send
    kind = np.zeros(len(task), dtype=np.int8)
    if graph.communication.p2p is P2P.COALESCED:
        kind = np.where(is_send, -1, 1) * graph.operation[task]
    in_order = np.lexsort((task, kind, late, after, rank))
    return Posts(rank[in_order], task[in_order], is_send[in_order], after[in_order])


def _step_before(graph: TaskGraph, rank: Integers, task: Integers) -> Integers:
    """The last compute step of a rank with a smaller number than the task's, or `NONE`."""
    step = graph.compute_tasks.member
    size = np.int64(len(graph))
    at = np.searchsorted(graph.rank[step] * size + step, rank * size + task) - 1
    before = step[at]
    return np.where((at >= 0) & (graph.rank[before] == rank), before, NONE).astype(np.int32)


def _around_segments(graph: TaskGraph) -> tuple[Integers, Integers]:
    """For each compute step: the step ahead of its segment, or `NONE`, and the last step of it.

    Both have one entry more, `NONE`, which is what an index of `NONE` finds.
    """
    step = graph.compute_tasks.member
    begins = (graph.block[step] == NONE) | (graph.block[step] == step)
    if graph.communication.p2p is P2P.COALESCED:
        begins &= ~_inside_pairs(graph, step)
    segment = np.cumsum(begins) - 1
    before = np.append(np.int32(NONE), step[:-1])
    before[_changes(graph.rank[step])] = NONE
    ahead, last = np.full((2, len(graph) + 1), NONE, dtype=np.int32)
    ahead[step] = before[begins][segment]
    last[step] = step[np.append(begins[1:], True)][segment]
    return ahead, last


def _inside_pairs(graph: TaskGraph, step: Integers) -> Flags:
    """The steps of pairs except for the first of each; in passes of several units, all of them.

    Passes of blocks are in none, nor are those of a rank that runs all its forward passes first.
    """
    rank, operation = graph.rank[step], graph.operation[step]
    begins = _changes(rank, operation, graph.stage[step], graph.microbatch[step])
    first = np.flatnonzero(begins)
    is_alone = graph.block[step] == NONE
    is_forward = is_alone & (operation == Operation.FORWARD)
    is_backward = is_alone & among(operation, writers(INPUT_GRADIENT))
    latest, earliest = np.full(graph.layout.pp, NONE), np.full(graph.layout.pp, len(step))
    place = np.arange(len(step))
    np.maximum.at(latest, rank[is_forward], place[is_forward])
    np.minimum.at(earliest, rank[is_backward], place[is_backward])
    alternates = (latest > earliest)[rank]
    paired = np.append(is_forward[first[:-1]] & is_backward[first[1:]], False)
    paired &= np.append(~_changes(rank[first])[1:], False) & alternates[first]
    in_pair = paired | np.append(False, paired[:-1])
    inside: Flags = in_pair[np.cumsum(begins) - 1]
    inside[first[paired]] = False
    return inside


def _changes(*columns: npt.NDArray[np.integer]) -> Flags:
    """Mask of the entries where any column changes; the first does."""
    table = np.stack(columns)
    return np.append(True, (table[:, 1:] != table[:, :-1]).any(axis=0))

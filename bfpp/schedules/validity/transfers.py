"""Rules for transfers: all that are needed, to the right rank, in time, and no others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.graph.lanes import Lane
from bfpp.schedules.graph.posting_faults import posting_faults
from bfpp.schedules.operations.data import OUTPUT, Needed
from bfpp.schedules.operations.operations import Operation, readers, writers
from bfpp.schedules.operations.operations import transfers as transfer_operations
from bfpp.schedules.settings.sharding import P2P
from bfpp.schedules.validity.findings import (
    Finding,
    alike,
    cell_number,
    cells,
    having,
    of_cell,
    out_of_order,
    too_early,
)
from bfpp.schedules.validity.happens_before import HappensBefore


def _payloads() -> dict[Operation, Needed]:
    """The payload of each kind of transfer, and how many units on it is needed."""
    carried = {operation: operation.row.carries for operation in transfer_operations()}
    return {operation: payload for operation, payload in carried.items() if payload}


def transfers(graph: TaskGraph) -> Iterator[Finding]:
    """One transfer where a micro-batch moves on to another rank, and no others."""
    for operation, payload in _payloads().items():
        sent = having(graph, (operation,))
        cell = cells(graph, sent)
        moves = _moves(graph, payload)
        expected = cell_number(graph.layout, *moves)
        receiver = graph.rank_of_cell[moves[0] + payload.units_on, moves[1]]
        at, of = alike(expected, cell)
        times = np.bincount(at, minlength=len(expected))
        for each in np.flatnonzero(times != 1).tolist():
            unit, microbatch = of_cell(graph.layout, int(expected[each]))
            what = f"{operation.title} of {graph.layout.name_of(unit)} micro-batch {microbatch}"
            several = tuple(sent[of[at == each]].tolist())
            if several:
                yield f"there are {len(several)} tasks, not one, that {what}", several
            else:
                yield f"there is no {what} to rank {receiver[each]}", ()
        astray = graph.peer[sent[of]] != receiver[at]
        for number, rank in zip(sent[of[astray]].tolist(), receiver[at[astray]], strict=True):
            yield f"{graph.task(number)} carries what rank {rank} needs", (number,)
        for number in np.delete(sent, of).tolist():
            yield f"{graph.task(number)} carries what no other rank needs", (number,)


def _moves(graph: TaskGraph, payload: Needed) -> tuple[np.ndarray, np.ndarray]:
    """The units and micro-batches from which another rank needs it, some units on.

    In an evaluation, nothing comes back.
    """
    datum, shift = payload
    if not graph.trains and datum != OUTPUT:
        return np.empty(0, np.intp), np.empty(0, np.intp)
    holder = graph.rank_of_cell
    unit, microbatch = np.indices(holder.shape).reshape(2, -1)
    inside = (unit + shift >= 0) & (unit + shift < len(holder))
    unit, microbatch = unit[inside], microbatch[inside]
    moves = holder[unit, microbatch] != holder[unit + shift, microbatch]
    return unit[moves], microbatch[moves]


def channels(graph: TaskGraph) -> Iterator[Finding]:
    """Both lanes of a channel hold the same transfers in the same order."""
    number = {lane: number for number, lane in enumerate(graph.lanes)}
    for sender, receiver in _channels(graph.lanes):
        sent, received = (
            graph.lane_tasks.of(number[lane]).tolist() if lane in number else []
            for lane in (sender, receiver)
        )
        if sent != received:
            differing = sorted(set(sent) ^ set(received))
            message = (
                f"rank {sender.rank} {sender.title} and rank {receiver.rank} {receiver.title} "
                f"differ in {', '.join(str(graph.task(task)) for task in differing)}"
            )
            yield message, tuple(differing)


def posts(graph: TaskGraph) -> Iterator[Finding]:
    """Sends match receives, each end posted once and on the right side of its pass.

    Posts may be left out where the order of lanes is the same: on channels, and in queues.
    """
    p2p = graph.communication.p2p
    if len(graph.posts.rank):
        yield from posting_faults(graph, graph.posts)
    elif not (p2p is P2P.CHANNELS or graph.communication.has_queues) and graph.is_transfer.any():
        yield f"transfers are {p2p}, and no posts give their order", ()


def _channels(lanes: tuple[Lane, ...]) -> list[tuple[Lane, Lane]]:
    """Each channel that some lane is an end of, as its sender's and its receiver's lane."""
    rows = [operation.row for operation in transfer_operations()]
    receive_of = {row.stream: row.arrives_on for row in rows if row.arrives_on}
    send_of = {receive: send for send, receive in receive_of.items()}
    ends: dict[tuple[Lane, Lane], None] = {}
    for lane in lanes:
        if lane.stream in receive_of:
            ends[lane, Lane(lane.peer, receive_of[lane.stream], lane.rank)] = None
        elif lane.stream in send_of:
            ends[Lane(lane.peer, send_of[lane.stream], lane.rank), lane] = None
    return list(ends)


def delivery(graph: TaskGraph, order: HappensBefore) -> Iterator[Finding]:
    """A transfer's payload is made before it, and used after it."""
    for operation, (datum, shift) in _payloads().items():
        sent = having(graph, (operation,))
        made, used = having(graph, writers(datum)), having(graph, readers(datum))
        late = [*out_of_order(order, made, sent), *out_of_order(order, sent, used, shift)]
        for first, second in late:
            yield too_early(graph, second, first)

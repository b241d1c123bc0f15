"""Rules for transfers: all that are needed, to the right rank, in time, and no others."""

from __future__ import annotations

from collections.abc import Iterator

from bfpp.schedules.graph import Lane, TaskGraph
from bfpp.schedules.operations import Needed, Operation, readers, writers
from bfpp.schedules.operations import transfers as transfer_operations
from bfpp.schedules.validity.findings import Cell, Finding, by_cell, too_early
from bfpp.schedules.validity.happens_before import HappensBefore


def _payloads() -> dict[Operation, Needed]:
    """What each kind of transfer carries, and how many units on it is needed."""
    carried = {operation: operation.row.carries for operation in transfer_operations()}
    return {operation: payload for operation, payload in carried.items() if payload}


def transfers(graph: TaskGraph) -> Iterator[Finding]:
    """One transfer where a micro-batch moves on to another rank, and no others."""
    for operation, payload in _payloads().items():
        found = by_cell(graph, (operation,))
        for cell, receiver in _receivers(graph, payload.units_on):
            yield from _once_to(graph, operation, cell, receiver, found.pop(cell, []))
        for numbers in found.values():
            for number in numbers:
                yield f"{graph.task(number)} carries what no other rank needs", (number,)


def _receivers(graph: TaskGraph, shift: int) -> Iterator[tuple[Cell, int]]:
    """Each cell from which another rank needs something, `shift` units on, and that rank."""
    holder = graph.rank_of_cell.tolist()
    for unit in range(len(holder)):
        if 0 <= unit + shift < len(holder):
            ends = zip(holder[unit], holder[unit + shift], strict=True)
            for microbatch, (here, there) in enumerate(ends):
                if here != there:
                    yield (unit, microbatch), there


def _once_to(
    graph: TaskGraph, operation: Operation, cell: Cell, receiver: int, found: list[int]
) -> Iterator[Finding]:
    what = f"{operation.title} of {graph.layout.name_of(cell[0])} micro-batch {cell[1]}"
    if not found:
        yield f"there is no {what} to rank {receiver}", ()
    elif len(found) > 1:
        yield f"there are {len(found)} tasks, not one, that {what}", tuple(found)
    for number in found:
        if graph.peer[number] != receiver:
            yield f"{graph.task(number)} carries what rank {receiver} needs", (number,)


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
    """What a transfer carries has been made before it, and is used after it."""
    for operation, (datum, shift) in _payloads().items():
        made, used = by_cell(graph, writers(datum)), by_cell(graph, readers(datum))
        for (unit, microbatch), found in by_cell(graph, (operation,)).items():
            makers = made.get((unit, microbatch), [])
            users = used.get((unit + shift, microbatch), [])
            pairs = [(maker, transfer) for transfer in found for maker in makers]
            pairs += [(transfer, user) for transfer in found for user in users]
            for first, second in pairs:
                if not order(first, second):
                    yield too_early(graph, second, first)

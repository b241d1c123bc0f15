"""Rules for tasks as such, whatever they do: columns, numbers, lanes, ranks, progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from bfpp.schedules.columns import NONE
from bfpp.schedules.graph import Task, TaskGraph
from bfpp.schedules.operations import OPERATIONS, Scope, Stream
from bfpp.schedules.validity.findings import Finding
from bfpp.schedules.validity.happens_before import replay


def columns(graph: TaskGraph) -> Iterator[Finding]:
    """Every number in the columns that should point to something does."""
    for name, (lowest, beyond) in _bounds(graph).items():
        column = getattr(graph, name)
        if len(column) != len(graph):
            yield f"column {name} has {len(column)} entries for {len(graph)} tasks", ()
            continue
        for number in np.flatnonzero((column < lowest) | (column >= beyond)).tolist():
            yield f"#{number} has {name} {column[number]}, which does not exist", (number,)
    if (graph.piece != NONE).any():
        yield "the passes are in pieces: the graph to check is the one before it is expanded", ()
    start, member = graph.dependencies
    if len(start) != len(graph) + 1 or start[0] != 0 or start[-1] != len(member):
        yield f"the dependencies are not those of {len(graph)} tasks", ()
        return
    task = np.repeat(np.arange(len(graph)), np.diff(start))
    for at in np.flatnonzero((member < 0) | (member >= len(graph))).tolist():
        yield f"#{task[at]} waits for #{member[at]}, which does not exist", (int(task[at]),)


def _bounds(graph: TaskGraph) -> dict[str, tuple[int, int]]:
    """For each column, the least value and the one after the greatest."""
    ranks, lanes, anything = graph.layout.pp, len(graph.lanes), 2**31
    return {
        "operation": (0, len(OPERATIONS)),
        "rank": (0, ranks),
        "peer": (NONE, ranks),
        "unit": (NONE, graph.layout.units),
        "microbatch": (NONE, graph.layout.microbatches),
        "lane": (0, lanes),
        "peer_lane": (NONE, lanes),
        "weight_buffer": (NONE, anything),
        "gradient_buffer": (NONE, anything),
        "piece": (NONE, anything),
        "block": (NONE, len(graph)),
    }


def numbering(graph: TaskGraph) -> Iterator[Finding]:
    """Every dependency has a smaller number."""
    start, member = graph.dependencies
    task = np.repeat(np.arange(len(graph)), np.diff(start))
    for at in np.flatnonzero(member >= task).tolist():
        late, early = int(task[at]), int(member[at])
        message = f"{graph.task(late)} waits for {graph.task(early)}, whose number is not smaller"
        yield message, (late, early)


def lanes(graph: TaskGraph) -> Iterator[Finding]:
    """Every task is on the lane of its stream, of its rank; a transfer at both its ends.

    So is what is done for both copies of a unit.
    """
    for lane, times in Counter(graph.lanes).items():
        if times > 1:
            yield f"rank {lane.rank} has {times} lanes of one kind: {lane.title}", ()
    for task in graph.tasks():
        here, there = task.operation.streams(graph.communication)
        yield from _misplaced(graph, task, task.lane, here, task.rank)
        if task.operation.row.carries or _is_of_copies(graph, task):
            yield from _misplaced(graph, task, task.peer_lane, there, task.peer)
        elif task.peer_lane != NONE or task.peer != NONE:
            yield f"{task} is no transfer and yet has a peer", (task.number,)


def _is_of_copies(graph: TaskGraph, task: Task) -> bool:
    return bool(graph.layout.copies) and task.operation.row.scope is Scope.UNIT


def _misplaced(
    graph: TaskGraph, task: Task, number: int, stream: Stream, rank: int
) -> Iterator[Finding]:
    if number == NONE:
        yield f"{task} is on no {stream.title} lane of rank {rank}", (task.number,)
        return
    lane = graph.lanes[number]
    if (lane.stream, lane.rank) != (stream, rank):
        actual, needed = f"{lane.title} lane of rank {lane.rank}", f"{stream.title} lane"
        yield f"{task} is on the {actual}, not on a {needed} of rank {rank}", (task.number,)


def placement(graph: TaskGraph) -> Iterator[Finding]:
    """Whatever is done for a unit, a rank that holds the unit does; for its copies, both do."""
    layout = graph.layout
    for task in graph.tasks():
        if task.operation.row.scope is Scope.RANK:
            continue
        if task.unit == NONE:
            yield f"{task} is of no unit", (task.number,)
        elif not layout.holds[task.rank, task.unit]:
            holders = " and ".join(map(str, np.flatnonzero(layout.holds[:, task.unit])))
            yield f"{task} is of a unit that rank {holders} holds", (task.number,)
        elif _is_of_copies(graph, task) and task.peer != layout.peer_of_rank[task.rank]:
            message = f"{task} leaves out the copy on rank {layout.peer_of_rank[task.rank]}"
            yield message, (task.number,)
        elif task.microbatch != NONE:
            ran = int(graph.rank_of_cell[task.unit, task.microbatch])
            if ran != task.rank:
                message = f"{task} is of a micro-batch that goes through the copy on rank {ran}"
                yield message, (task.number,)


def deadlock(graph: TaskGraph) -> Iterator[Finding]:
    """The lanes, run in order and with unbuffered sends, all come to their ends."""
    stuck = replay(graph)
    if stuck:
        waits = "; ".join(
            f"rank {graph.lanes[lane].rank} {graph.lanes[lane].title} waits at {graph.task(head)}"
            for lane, head in stuck.items()
        )
        yield waits, tuple(dict.fromkeys(stuck.values()))

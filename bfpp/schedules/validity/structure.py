"""Rules for tasks as such, whatever they do: columns, numbers, lanes, ranks, progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Integers, among
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.graph.tasks import Task
from bfpp.schedules.graph.wait_cycles import short_cycle
from bfpp.schedules.operations.operations import OPERATIONS, Operation, of_scope
from bfpp.schedules.operations.row import Scope
from bfpp.schedules.operations.streams import STREAMS, Stream
from bfpp.schedules.validity.findings import Finding
from bfpp.schedules.validity.happens_before import waits


def columns(graph: TaskGraph) -> Iterator[Finding]:
    """Every number in the columns that should point to something does."""
    for name, (lowest, beyond) in _bounds(graph).items():
        column = getattr(graph, name)
        if len(column) != len(graph):
            yield f"column {name} has {len(column)} entries for {len(graph)} tasks", ()
            continue
        for number in np.flatnonzero((column < lowest) | (column >= beyond)).tolist():
            yield f"#{number} has {name} {column[number]}, which does not exist", (number,)
    yield from _posts(graph)
    start, member = graph.dependencies
    if len(start) != len(graph) + 1 or start[0] != 0 or start[-1] != len(member):
        yield f"the dependencies are not those of {len(graph)} tasks", ()
        return
    task = np.repeat(np.arange(len(graph)), np.diff(start))
    for at in np.flatnonzero((member < 0) | (member >= len(graph))).tolist():
        yield f"#{task[at]} waits for #{member[at]}, which does not exist", (int(task[at]),)


def _posts(graph: TaskGraph) -> Iterator[Finding]:
    """Posts are of ranks, transfers and steps that there are."""
    posts = graph.posts
    if len({*map(len, posts)}) > 1:
        yield "the columns of the posts are not of one length", ()
        return
    bounds = {
        "rank": (0, graph.layout.pp),
        "transfer": (0, len(graph)),
        "after": (NONE, len(graph)),
    }
    for name, (lowest, beyond) in bounds.items():
        column = getattr(posts, name)
        for place in np.flatnonzero((column < lowest) | (column >= beyond)).tolist():
            yield f"post {place} has {name} {column[place]}, which does not exist", ()


def whole_passes(graph: TaskGraph) -> Iterator[Finding]:
    """The rules are about passes; pieces are for figures and traces."""
    if (graph.piece != NONE).any():
        yield "the passes are in pieces: the graph to check is the one before it is expanded", ()


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
        "piece": (NONE, max(map(len, graph.templates.values()), default=0)),
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

    So is a task for both copies of a unit.
    """
    for lane, times in Counter(graph.lanes).items():
        if times > 1:
            yield f"rank {lane.rank} has {times} lanes of one kind: {lane.title}", ()
    for task in map(graph.task, np.flatnonzero(_off_lane(graph)).tolist()):
        here, there = task.operation.streams(graph.communication)
        yield from _misplaced(graph, task, task.lane, here, task.rank)
        if _has_peer(graph, task.operation):
            yield from _misplaced(graph, task, task.peer_lane, there, task.peer)
        elif task.peer_lane != NONE or task.peer != NONE:
            yield f"{task} is no transfer and yet has a peer", (task.number,)


def _off_lane(graph: TaskGraph) -> Flags:
    """The tasks of which either end is not where it should be: those to look at."""
    table = np.array([(lane.rank, STREAMS.index(lane.stream)) for lane in graph.lanes])
    streams = [each.streams(graph.communication) for each in OPERATIONS]
    here, there = np.array([[*map(STREAMS.index, each)] for each in streams])[graph.operation].T
    paired = np.array([_has_peer(graph, operation) for operation in OPERATIONS])[graph.operation]
    off: Flags = (table[graph.lane] != np.stack([graph.rank, here], axis=1)).any(axis=1)
    far = (table[graph.peer_lane] != np.stack([graph.peer, there], axis=1)).any(axis=1)
    alone = (graph.peer_lane == NONE) & (graph.peer == NONE)
    off |= np.where(paired, far | (graph.peer_lane == NONE), ~alone)
    return off


def _has_peer(graph: TaskGraph, operation: Operation) -> bool:
    """True if its tasks have two ends: transfers, and tasks for both copies of a unit.

    Tasks for the first and the last unit do, too, where these are on two ranks.
    """
    if operation.row.scope is Scope.ENDS:
        return len(graph.layout.ends) > 1
    of_copies = bool(graph.layout.copies) and operation.row.scope is Scope.UNIT
    return operation.row.carries is not None or of_copies


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
    """Tasks of a unit are on a rank that holds it, or on both ranks of its copies.

    Tasks of the first and the last unit name the first, on all ranks that hold either.
    """
    layout, rank, unit, microbatch = graph.layout, graph.rank, graph.unit, graph.microbatch
    of_unit, of_ends, of_rank = (
        among(graph.operation, of_scope(scope, OPERATIONS))
        for scope in (Scope.UNIT, Scope.ENDS, Scope.RANK)
    )
    has_unit = ~(of_ends | of_rank)
    copy, ran = layout.peer_of_rank[rank], graph.rank_of_cell[unit, microbatch]
    first, second, *more = *layout.ends, NONE
    elsewhere = (unit != 0) | (rank != first) | (graph.peer != second) | (len(more) > 1)
    broken = {
        "is not of the first unit and the last, on rank {ends}": of_ends & elsewhere,
        "is of no unit": has_unit & (unit == NONE),
        "is of a unit that rank {holders} holds": has_unit & ~layout.holds[rank, unit],
        "leaves out the copy on rank {copy}": of_unit & bool(layout.copies) & (graph.peer != copy),
        "is of a micro-batch that goes through the copy on rank {ran}": (
            has_unit & (microbatch != NONE) & (ran != rank)
        ),
    }
    sentences, wrong = list(broken), np.stack(list(broken.values()))
    for number in np.flatnonzero(wrong.any(axis=0)).tolist():
        sentence = sentences[wrong[:, number].argmax()].format(
            ends=" and ".join(map(str, layout.ends)),
            holders=" and ".join(map(str, np.flatnonzero(layout.holds[:, unit[number]]))),
            copy=copy[number],
            ran=ran[number],
        )
        yield f"{graph.task(number)} {sentence}", (number,)


def deadlock(graph: TaskGraph, turn: Integers) -> Iterator[Finding]:
    """The lanes, run in order and with unbuffered sends, all come to their ends."""
    if (turn == NONE).any():
        stuck = short_cycle(graph.predecessors, turn)
        yield "; ".join(waits(graph, stuck)), tuple(stuck)

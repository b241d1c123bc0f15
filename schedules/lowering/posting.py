"""Transfers as software posts them: which end of which is put where among a rank's steps.

A rank's program is its compute steps and, between them, the ends of its transfers. Whatever is
posted after a step starts once the step has ended, receives too (a communicator's stream waits
for the compute stream). `posted` takes a graph whose transfers are posted by direction and
gives the one in which they are posted in the order of `Ends`:

- in one queue a rank, both ends of a transfer wait for those ahead in their queues;
- in groups, a group's transfers wait for the group ahead at both their ranks, and the step after
  a group for all of it;
- an eager send waits at its sender alone; what it brings counts once all that the receiver
  posted ahead of it is through.

Where some wait for each other, the order deadlocks, and the error names them. What a file posts
must be what its steps need, on channels too: there, what is sent first is received first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import NONE, Flags, Integers, group_by
from bfpp.schedules.communication import P2P
from bfpp.schedules.graph import COLUMNS, TaskGraph
from bfpp.schedules.invalid import InvalidConfiguration
from bfpp.schedules.lowering.step_table import Deadlock
from bfpp.schedules.operations import OPERATIONS, Operation
from bfpp.schedules.waiting import circle, turns

Edges = Iterator[tuple[int, int]]
"""Tasks, each with one that it waits for."""


class WrongPosts(InvalidConfiguration):
    """Sends and receives in a file that are not those that its steps need."""

    def __init__(self, reason: str) -> None:
        super().__init__("p2p", reason)


class Post(NamedTuple):
    """One end of a transfer as a file gives it, after a number of steps of its rank."""

    is_send: bool
    operation: Operation
    unit: int
    microbatch: int
    steps: int


class Ends(NamedTuple):
    """Ends of transfers, rank by rank in the order in which they are posted.

    `after` is the compute step ahead of each, or `NONE`.
    """

    rank: Integers
    transfer: Integers
    is_send: Flags
    after: Integers


def posted(graph: TaskGraph, posts: Sequence[Sequence[Post]] = ()) -> TaskGraph:
    """The graph with its transfers posted as its communication says, or as given.

    Raises `Deadlock` where they wait for each other, `WrongPosts` where what is given cannot be.
    """
    communication = graph.communication
    given = _given(graph, posts) if any(posts) else None
    if communication.p2p is P2P.CHANNELS:
        if given:
            _require_channels(graph, given)
        return graph
    ends = given or _usual(graph)
    groups = _groups(ends, together=communication.p2p is P2P.BATCHED)
    waits = _eager if communication.eager else _rendezvous
    waiting = _with_edges(graph, waits(graph, groups))
    before = _with_edges(waiting, _queues(graph, ends)).dependencies
    turn = turns(before)
    if (turn == NONE).any():
        raise Deadlock("deadlock: " + "; ".join(_why(graph, ends, circle(before, turn))))
    return _renumbered(waiting, turn)


def _usual(graph: TaskGraph) -> Ends:
    """Sends right after their steps; receives when their senders post, or before their steps."""
    transfer = np.flatnonzero(graph.is_transfer).astype(np.int32)
    user = graph.dependents.member[graph.dependents.start[transfer]]
    at_once = graph.communication.p2p is P2P.FIFO
    rank = np.append(graph.rank[transfer], graph.peer[transfer])
    is_send = np.arange(len(rank)) < len(transfer)
    after = _step_before(graph, rank, np.append(transfer, transfer if at_once else user))
    transfer = np.tile(transfer, 2)
    late = np.zeros_like(is_send) if at_once else ~is_send
    in_order = np.lexsort((transfer, late, after, rank))
    return Ends(rank[in_order], transfer[in_order], is_send[in_order], after[in_order])


def _step_before(graph: TaskGraph, rank: Integers, task: Integers) -> Integers:
    """The last compute step of a rank with a smaller number than the task's, or `NONE`."""
    step = np.flatnonzero(graph.is_compute)
    step = step[np.argsort(graph.rank[step], kind="stable")]
    size = np.int64(len(graph))
    at = np.searchsorted(graph.rank[step] * size + step, rank * size + task) - 1
    found = step[at]
    return np.where((at >= 0) & (graph.rank[found] == rank), found, NONE).astype(np.int32)


def _given(graph: TaskGraph, posts: Sequence[Sequence[Post]]) -> Ends:
    """The ends that a file lists; refuses those that are missing, not needed, or out of place."""
    transfers = np.flatnonzero(graph.is_transfer).tolist()
    open_ends = {
        (rank, is_send, int(graph.operation[task]), int(graph.unit[task]), microbatch): task
        for task in transfers
        for microbatch in [int(graph.microbatch[task])]
        for rank, is_send in ((int(graph.rank[task]), True), (int(graph.peer[task]), False))
    }
    ends = []
    for rank, own in enumerate(posts):
        steps = [task for task in graph.rank_tasks.of(rank).tolist() if graph.is_compute[task]]
        place = {task: at for at, task in enumerate(steps)}
        for post in own:
            task = open_ends.pop((rank, *post[:4]), None)
            if task is None:
                raise WrongPosts(f"rank {rank} posts {_words(post)} in vain")
            others = (graph.dependencies if post.is_send else graph.dependents).of(task).tolist()
            done = [place.get(other, len(steps)) < post.steps for other in others]
            if post.is_send and not all(done):
                raise WrongPosts(f"rank {rank} posts {_words(post)} before the pass that makes it")
            if not post.is_send and any(done):
                raise WrongPosts(f"rank {rank} posts {_words(post)} after the pass that needs it")
            ends.append((rank, task, post.is_send, steps[post.steps - 1] if post.steps else NONE))
    for rank, is_send, operation, unit, microbatch in open_ends:
        missing = _words(Post(is_send, OPERATIONS[operation], unit, microbatch, 0))
        raise WrongPosts(f"rank {rank} does not post {missing}")
    table = np.array(ends, dtype=np.int32).reshape(-1, 4)
    return Ends(table[:, 0], table[:, 1], table[:, 2] == 1, table[:, 3])


def _require_channels(graph: TaskGraph, ends: Ends) -> None:
    """Raise `WrongPosts` where one end of a channel has transfers in another order than the other.

    What is sent first is what arrives first.
    """
    channel = np.stack([graph.operation, graph.rank, graph.peer], axis=1)[ends.transfer]
    for each in np.unique(channel, axis=0):
        own = (channel == each).all(axis=1)
        sent, received = (ends.transfer[own & (ends.is_send == side)] for side in (True, False))
        if len(strange := np.flatnonzero(sent != received)):
            first = strange[0]
            one, other = (graph.task(int(task)).words for task in (sent[first], received[first]))
            raise WrongPosts(f"{one} is sent where {other} is received")


def _words(post: Post) -> str:
    kind = "the send of" if post.is_send else "the receive of"
    return f"{kind} {post.operation.title} of unit {post.unit} micro-batch {post.microbatch}"


class _Group(NamedTuple):
    """What is posted together after a step of a rank."""

    rank: int
    after: int
    sends: list[int]
    receives: list[int]


def _groups(ends: Ends, *, together: bool) -> list[_Group]:
    groups: list[_Group] = []
    for rank, task, is_send, after in zip(*(each.tolist() for each in ends), strict=True):
        if not (together and groups and groups[-1][:2] == (rank, after)):
            groups.append(_Group(rank, after, [], []))
        (groups[-1].sends if is_send else groups[-1].receives).append(task)
    return groups


def _rendezvous(graph: TaskGraph, groups: list[_Group]) -> Edges:
    """Waits other than those for data, where both ends of a transfer block what follows them."""
    batched = graph.communication.p2p is P2P.BATCHED
    next_step = _next_steps(graph)
    for group in groups:
        everything = [*group.sends, *group.receives]
        if group.after != NONE:
            yield from product(everything, [group.after])
        if batched:
            step = next_step[group.rank, group.after]
            yield from product([step] if step != NONE else [], everything)
    if batched:
        for ahead, behind in pairwise(groups):
            if ahead.rank == behind.rank:
                yield from product(
                    [*behind.sends, *behind.receives], [*ahead.sends, *ahead.receives]
                )


def _eager(graph: TaskGraph, groups: list[_Group]) -> Edges:
    """Waits other than those for data, where a transfer waits for nothing that its receiver posts.

    All that a send waits for has ended when the send has; so what follows a send waits for
    that and for what was received since.
    """
    batched = graph.communication.p2p is P2P.BATCHED
    next_step = _next_steps(graph)
    ahead: list[int] = []
    unawaited: list[int] = []
    rank = latest = NONE
    for group in groups:
        if group.rank != rank:
            rank, ahead, unawaited, latest = group.rank, [], [], NONE
        yield from product(group.sends, ahead)
        if group.sends:
            ahead, unawaited = [], []
        both = [*group.sends, *group.receives]
        ahead, unawaited = ahead + both, unawaited + both
        users = [next_step[rank, group.after]] if batched else []
        users += [user for task in group.receives for user in graph.dependents.of(task).tolist()]
        for user in sorted({*users} - {NONE}):
            # Steps behind one that waited for all this wait for it, too.
            yield from product([user], unawaited if user > latest else ahead)
            unawaited, latest = [], max(user, latest)


def _next_steps(graph: TaskGraph) -> dict[tuple[int, int], int]:
    """By a rank and one of its compute steps, or `NONE`: the step after it, or `NONE`."""
    found: dict[tuple[int, int], int] = {}
    for rank in range(graph.layout.pp):
        own = graph.rank_tasks.of(rank)
        steps = [NONE, *own[graph.is_compute[own]].tolist(), NONE]
        found.update(((rank, step), after) for step, after in pairwise(steps))
    return found


def _queues(graph: TaskGraph, ends: Ends) -> Edges:
    """Transfers behind others on a lane, as posted; all others stay in the order of the lane."""
    ahead, behind = graph.lane_neighbours
    others = ~(graph.is_transfer[ahead] & graph.is_transfer[behind])
    yield from zip(behind[others].tolist(), ahead[others].tolist(), strict=True)
    last: dict[int, int] = {}
    for task, is_send in zip(ends.transfer.tolist(), ends.is_send.tolist(), strict=True):
        if is_send or graph.communication.has_queues:
            lane = int((graph.lane if is_send else graph.peer_lane)[task])
            if lane in last:
                yield task, last[lane]
            last[lane] = task


def _with_edges(graph: TaskGraph, edges: Edges) -> TaskGraph:
    own = zip(graph.dependent.tolist(), graph.dependencies.member.tolist(), strict=True)
    unique = np.array([*dict.fromkeys([*own, *edges])], dtype=np.int32).reshape(-1, 2)
    return replace(graph, dependencies=group_by(unique[:, 0], unique[:, 1], len(graph)))


def _renumbered(graph: TaskGraph, turn: Integers) -> TaskGraph:
    """The graph with its tasks numbered by turn."""
    old = np.argsort(turn)
    return replace(
        graph,
        **{name: getattr(graph, name)[old] for name in COLUMNS},
        dependencies=group_by(turn[graph.dependent], turn[graph.dependencies.member], len(graph)),
    )


def _why(graph: TaskGraph, ends: Ends, tasks: list[int]) -> Iterator[str]:
    """Why each of a circle of tasks waits for the next."""
    place = {
        end: at
        for at, end in enumerate(zip(ends.rank.tolist(), ends.transfer.tolist(), strict=True))
    }
    for task, other in pairwise([*tasks, tasks[0]]):
        one, first = graph.task(task), graph.task(other)
        if other in one.dependencies:
            yield f"{one.words} needs {first.words}"
            continue
        shared = sorted({one.rank, one.peer} & {first.rank, first.peer} - {NONE})
        rank = next(
            (each for each in shared if place.get((each, other), 0) < place.get((each, task), 1)),
            shared[0],
        )
        yield f"{one.words} comes on rank {rank} after {first.words}"

"""Posting of sends and receives: the waits that queues and groups of transfers add to a graph.

A rank's program is its compute steps and, between them, the ends of its transfers. Whatever is
posted after a step starts once the step has ended, receives too (a communicator's stream waits
for the compute stream). `posted` takes a graph whose transfers are on channels and gives the one in
which they are posted in the order of its `Posts`:

- in one queue a rank, both ends of a transfer wait for those ahead in their queues;
- in groups, a group's transfers wait for the group ahead at both their ranks, and the step after
  a group for all of it;
- an eager send waits at its sender alone; its data can be used once all that the receiver
  posted ahead of it has ended.

Posts must be those that the steps need, and sends must match receives (`graph/posting_faults.py`).
Queues become an order of lanes, groups become dependencies. The tasks are then numbered in
topological order of both; where there is none, the order deadlocks, and the error names the
transfers of a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, product
from typing import NamedTuple

import numpy as np

from bfpp.schedules.columns import NONE, Integers, group_by
from bfpp.schedules.errors import InvalidConfiguration
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.graph.posting_faults import posting_faults
from bfpp.schedules.graph.task_columns import COLUMNS
from bfpp.schedules.graph.wait_cycles import short_cycle, turns
from bfpp.schedules.lowering.prefetch import Begins, begun
from bfpp.schedules.lowering.step_table import Deadlock
from bfpp.schedules.lowering.usual_posts import usual_posts
from bfpp.schedules.orders.posts import NOWHERE, Post, Posts, posts_of
from bfpp.schedules.settings.sharding import P2P

Edges = Iterator[tuple[int, int]]
"""Tasks, each with one that it waits for."""


class WrongPosts(InvalidConfiguration):
    """Sends and receives that are not those that the steps need, or do not meet each other."""


def posted(graph: TaskGraph, begins: Begins, given: Sequence[Sequence[Post]] = ()) -> TaskGraph:
    """The graph with its transfers posted as its communication says, or as given.

    What begins no earlier than a step also waits for all that posting makes the step wait for.
    Raises `WrongPosts` where what is sent is not what is received, or where what is given cannot
    be; else `Deadlock` where transfers wait for each other.
    """
    communication = graph.communication
    has_channels = communication.p2p is P2P.CHANNELS
    if has_channels and not any(given):
        return begun(graph, begins)
    posts = _given(graph, given) if any(given) else usual_posts(graph)
    for reason, _ in posting_faults(graph, posts):
        raise WrongPosts("schedule" if any(given) else "p2p", reason)
    if not communication.pp_overlap:
        return begun(graph, begins)
    groups = _groups(posts, together=communication.in_groups)
    waits: Edges = iter(())
    if not has_channels:
        waits = (_eager if communication.eager else _rendezvous)(graph, groups)
    waiting = begun(_with_edges(graph, waits), begins)
    before = _with_edges(waiting, _queues(graph, posts)).dependencies
    turn = turns(before)
    if (turn == NONE).any():
        raise Deadlock("deadlock: " + "; ".join(_why(graph, posts, short_cycle(before, turn))))
    kept = NOWHERE if has_channels else posts.moved(turn, turn)  # lanes say all of channels
    return _renumbered(waiting, turn, kept)


def _given(graph: TaskGraph, given: Sequence[Sequence[Post]]) -> Posts:
    """The posts that a file lists; refuses those of transfers that there are not."""
    ends = {
        (rank, is_send, int(graph.operation[task]), int(graph.stage[task]), microbatch): task
        for task in np.flatnonzero(graph.is_transfer).tolist()
        for microbatch in [int(graph.microbatch[task])]
        for rank, is_send in ((int(graph.rank[task]), True), (int(graph.peer[task]), False))
    }
    rows = []
    for rank, own in enumerate(given):
        last = _last_tasks(graph, rank)
        for post in own:
            task = ends.pop((rank, *post[:4]), None)
            if task is None:
                raise WrongPosts("schedule", f"rank {rank} posts {_words(post)} in vain")
            rows.append((rank, task, post.is_send, last[post.steps - 1] if post.steps else NONE))
    return posts_of(rows)


def _last_tasks(graph: TaskGraph, rank: int) -> list[int]:
    """For each pass of a rank through a stage, the last task of it and of those ahead of it."""
    own = graph.compute_tasks.of(rank)
    columns = (graph.operation[own], graph.stage[own], graph.microbatch[own])
    passes = zip(*(each.tolist() for each in columns), strict=True)
    return [*accumulate(dict(zip(passes, own.tolist(), strict=True)).values(), max)]


def _words(post: Post) -> str:
    kind = "the send of" if post.is_send else "the receive of"
    return f"{kind} {post.operation.title} of stage {post.stage} micro-batch {post.microbatch}"


class _Group(NamedTuple):
    """Sends and receives posted together after a step of a rank."""

    rank: int
    after: int
    sends: list[int]
    receives: list[int]


def _groups(posts: Posts, *, together: bool) -> list[_Group]:
    groups: list[_Group] = []
    for rank, task, is_send, after in zip(*(each.tolist() for each in posts), strict=True):
        if not (together and groups and groups[-1][:2] == (rank, after)):
            groups.append(_Group(rank, after, [], []))
        (groups[-1].sends if is_send else groups[-1].receives).append(task)
    return groups


def _rendezvous(graph: TaskGraph, groups: list[_Group]) -> Edges:
    """Waits other than for data, where both ends of a transfer block later tasks."""
    in_groups = graph.communication.in_groups
    next_step = _next_steps(graph)
    for group in groups:
        everything = [*group.sends, *group.receives]
        if group.after != NONE:
            yield from product(everything, [group.after])
        if in_groups:
            step = next_step[group.rank, group.after]
            yield from product([step] if step != NONE else [], everything)
    if in_groups:
        for ahead, behind in pairwise(groups):
            if ahead.rank == behind.rank:
                yield from product(
                    [*behind.sends, *behind.receives], [*ahead.sends, *ahead.receives]
                )


def _eager(graph: TaskGraph, groups: list[_Group]) -> Edges:
    """Waits other than those for data, where a transfer waits for nothing that its receiver posts.

    It waits for the step that its send is posted after. All that a send waits for has ended when
    the send has; so what follows a send waits for that and for what was received since.
    """
    in_groups = graph.communication.in_groups
    next_step = _next_steps(graph)
    ahead: list[int] = []
    unawaited: list[int] = []
    rank = latest = NONE
    for group in groups:
        if group.rank != rank:
            rank, ahead, unawaited, latest = group.rank, [], [], NONE
        yield from product(group.sends, [*ahead, *({group.after} - {NONE})])
        if group.sends:
            ahead, unawaited = [], []
        both = [*group.sends, *group.receives]
        ahead, unawaited = ahead + both, unawaited + both
        users = [next_step[rank, group.after]] if in_groups else []
        users += [user for task in group.receives for user in graph.dependents.of(task).tolist()]
        for user in sorted({*users} - {NONE}):
            # Steps behind one that waited for all this wait for it, too.
            yield from product([user], unawaited if user > latest else ahead)
            unawaited, latest = [], max(user, latest)


def _next_steps(graph: TaskGraph) -> dict[tuple[int, int], int]:
    """By a rank and one of its compute steps, or `NONE`: the step after it, or `NONE`."""
    following: dict[tuple[int, int], int] = {}
    for rank in range(graph.layout.pp):
        own = graph.rank_tasks.of(rank)
        steps = [NONE, *own[graph.is_compute[own]].tolist(), NONE]
        following.update(((rank, step), after) for step, after in pairwise(steps))
    return following


def _queues(graph: TaskGraph, posts: Posts) -> Edges:
    """Transfers behind others on a lane, as posted; all others stay in the order of the lane."""
    ahead, behind = graph.lane_neighbours
    others = ~(graph.is_transfer[ahead] & graph.is_transfer[behind])
    yield from zip(behind[others].tolist(), ahead[others].tolist(), strict=True)
    last: dict[int, int] = {}
    for task, is_send in zip(posts.transfer.tolist(), posts.is_send.tolist(), strict=True):
        if is_send or graph.communication.has_queues:
            lane = int((graph.lane if is_send else graph.peer_lane)[task])
            if lane in last:
                yield task, last[lane]
            last[lane] = task


def _with_edges(graph: TaskGraph, edges: Edges) -> TaskGraph:
    own = zip(graph.dependent.tolist(), graph.dependencies.member.tolist(), strict=True)
    unique = np.array([*dict.fromkeys([*own, *edges])], dtype=np.int32).reshape(-1, 2)
    return replace(graph, dependencies=group_by(unique[:, 0], unique[:, 1], len(graph)))


def _renumbered(graph: TaskGraph, turn: Integers, posts: Posts) -> TaskGraph:
    """The graph with its tasks numbered by turn, and its posts, which are by that already."""
    old = np.argsort(turn)
    return replace(
        graph,
        **{name: getattr(graph, name)[old] for name in COLUMNS},
        posts=posts,
        dependencies=group_by(turn[graph.dependent], turn[graph.dependencies.member], len(graph)),
    )


def _why(graph: TaskGraph, posts: Posts, tasks: list[int]) -> Iterator[str]:
    """The reasons for which each task of a cycle waits for the next."""
    place = {
        end: at
        for at, end in enumerate(zip(posts.rank.tolist(), posts.transfer.tolist(), strict=True))
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

"""Faults of posted sends and receives: missing, repeated, misplaced or mismatched.

A communicator distinguishes messages by their order alone (NCCL ignores tags): of those from one
rank to another, the n-th that is sent is the n-th that is received. So both ends of each must
have the same place there, however transfers are posted; else payloads would be exchanged, and
where these are of one size, nobody would notice. Channels are communicators of their own, for each
kind of transfer; in all other modes of `P2P` there is one for all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bfpp.schedules.columns import NONE
from bfpp.schedules.graph.graph import TaskGraph
from bfpp.schedules.orders.posts import Posts
from bfpp.schedules.settings.sharding import P2P

Fault = tuple[str, tuple[int, ...]]
"""A sentence, and the tasks that it names."""

SENDS, RECEIVES = True, False


def posting_faults(graph: TaskGraph, posts: Posts) -> Iterator[Fault]:
    """Missing, repeated and useless posts; without these, misplaced and mismatched ones."""
    if incomplete := list(_incomplete(graph, posts)):
        yield from incomplete
        return
    yield from _misplaced(graph, posts)
    yield from _exchanged(graph, posts)


def _incomplete(graph: TaskGraph, posts: Posts) -> Iterator[Fault]:
    """Each transfer is sent once by its rank, and received once by its peer."""
    for side, rank_of in ((SENDS, graph.rank), (RECEIVES, graph.peer)):
        rank, task = (column[posts.is_send == side] for column in (posts.rank, posts.transfer))
        own = graph.is_transfer[task] & (rank_of[task] == rank)
        times = np.bincount(task[own], minlength=len(graph))
        for number in np.flatnonzero(graph.is_transfer & (times == 0)).tolist():
            yield f"rank {rank_of[number]} does not post {_end(graph, side, number)}", (number,)
        for number in np.flatnonzero(times > 1).tolist():
            again = f"{_end(graph, side, number)} {times[number]} times"
            yield f"rank {rank_of[number]} posts {again}", (number,)
        for poster, number in zip(rank[~own].tolist(), task[~own].tolist(), strict=True):
            yield f"rank {poster} posts {_end(graph, side, number)} in vain", (number,)


def _misplaced(graph: TaskGraph, posts: Posts) -> Iterator[Fault]:
    """Sends before the pass that makes their data, receives after the pass that needs it."""
    task, other = graph.dependent, graph.dependencies.member
    made, needed = np.full(len(graph), NONE), np.full(len(graph), len(graph))
    by = graph.is_transfer[task] & graph.is_compute[other] & (graph.rank[task] == graph.rank[other])
    np.maximum.at(made, task[by], other[by])
    to = graph.is_transfer[other] & graph.is_compute[task] & (graph.peer[other] == graph.rank[task])
    np.minimum.at(needed, other[to], task[to])
    for side, is_wrong, how in (
        (SENDS, made[posts.transfer] > posts.after, "before the pass that makes it"),
        (RECEIVES, needed[posts.transfer] <= posts.after, "after the pass that needs it"),
    ):
        for at in np.flatnonzero(is_wrong & (posts.is_send == side)).tolist():
            number = int(posts.transfer[at])
            yield f"rank {posts.rank[at]} posts {_end(graph, side, number)} {how}", (number,)


def _exchanged(graph: TaskGraph, posts: Posts) -> Iterator[Fault]:
    """The n-th send from one rank to another meets the n-th receive: the first that does not."""
    has_channels = graph.communication.p2p is P2P.CHANNELS
    kind = graph.operation if has_channels else np.zeros(len(graph), np.int8)
    pair = kind[posts.transfer], graph.rank[posts.transfer], graph.peer[posts.transfer]
    code = np.ravel_multi_index(
        [each.astype(np.int64) for each in pair], (kind.max() + 1, *[graph.layout.pp] * 2)
    )
    in_order = np.argsort(code, kind="stable")
    sent, received = (in_order[posts.is_send[in_order] == side] for side in (SENDS, RECEIVES))
    wrong = np.flatnonzero(posts.transfer[sent] != posts.transfer[received])
    between = code[sent]
    for at in wrong[np.unique(between[wrong], return_index=True)[1]].tolist():
        one, other = (graph.task(int(posts.transfer[ends[at]])) for ends in (sent, received))
        place = at - int(np.searchsorted(between, between[at])) + 1
        message = f"message {place} from rank {one.rank} to rank {one.peer}"
        yield (
            f"{one.words} is sent where {other.words} is received, as {message}",
            (one.number, other.number),
        )


def _end(graph: TaskGraph, side: bool, number: int) -> str:
    return f"the {'send' if side is SENDS else 'receive'} of {graph.task(number).words}"

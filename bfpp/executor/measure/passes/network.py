"""Links between hosts, and the ports of hosts that all of their transfers share.

Pairs of hosts take turns as in a tournament, so that each measures with its ports to itself: small
messages give the latency, and larger ones, until one takes long enough, the bandwidth by size.
Then each host sends to all others at the same time, and all others to it: that is what leaves and
enters it at most. A message counts until its receiver has answered. Of several times the shortest
counts: other load on a machine, and a connection that is still gaining speed, only add.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from bfpp.executor.measure.passes.runs import Bench, Profile
from bfpp.executor.plan.plan import Plan

SMALL, LARGEST = 4_096, 16 << 20
"""Bytes of the messages by which latency is measured, and of the largest at all."""

LONG_ENOUGH = 0.1
"""Seconds of a message; larger ones would say nothing new of the bandwidth."""

NANOSECOND = 1e-9

GROWTH, PINGS, ROUNDS = 4, 11, 3

DONE = 0
"""The size of no message."""

Point = tuple[float, float]
"""Bytes of a message, and seconds."""


class Link(NamedTuple):
    """One direction between two hosts, or within one."""

    sender: int
    receiver: int
    points: list[Point]


def measure_network(plan: Plan, bench: Bench) -> Profile:
    """Channels between hosts, and their ports; nothing unless there are several hosts."""
    del plan
    here = bench.job.processes_here
    hosts = bench.context.processes // here
    if hosts == 1:
        return {}
    own = bench.context.process
    links = list(_links(own, hosts, here))
    gathered: list[list[Link] | None] = [None] * bench.context.processes
    dist.all_gather_object(gathered, links)
    lines = {
        (link.sender, link.receiver): _line(link.points) for each in gathered for link in each or ()
    }
    size = round(LONG_ENOUGH * min(bandwidth for _, bandwidth in lines.values()))
    size = max(SMALL, min(size, LARGEST))
    ports = [_port(own, host, hosts, here, size) for host in range(hosts)]
    return {
        "channels": [
            {"sender": sender, "receiver": receiver, "latency": latency, "bandwidth": bandwidth}
            for (sender, receiver), (latency, bandwidth) in sorted(lines.items())
        ],
        "hosts": [{"processes": here, "out": out, "into": into} for out, into in ports],
    }


def _line(points: Sequence[Point]) -> tuple[float, float]:
    """Latency, and bytes/s of what large messages have more than smaller ones.

    Small messages may pass at once where a link is shaped, and say nothing of its bandwidth.
    """
    (_, latency), *_ = points
    (less, shorter), (more, longer) = [(0.0, latency), *points[1:]][-2:]
    return latency, (more - less) / max(longer - shorter, NANOSECOND)


def _links(own: int, hosts: int, here: int) -> Iterator[Link]:
    """Measurements of a sender: the first process of each host, to the others' and the second."""
    host, place = divmod(own, here)
    if here > 1 and place < 2:
        points = _one_way(own, own + 1 - 2 * place, sends=place == 0)
        if place == 0:
            yield Link(host, host, points)
    dist.barrier()
    for first, second in _pairs_in_turns(hosts, host):
        for sender, receiver in ((first, second), (second, first)):
            if place == 0 and first != second:
                other = here * (receiver if host == sender else sender)
                points = _one_way(own, other, sends=host == sender)
                if host == sender:
                    yield Link(sender, receiver, points)
        dist.barrier()


def _pairs_in_turns(hosts: int, host: int) -> Iterator[tuple[int, int]]:
    """The pairs that a host is in, one a round of a tournament; itself where it pauses."""
    players = [*range(hosts), *([None] if hosts % 2 else [])]
    for _ in range(len(players) - 1):
        half = len(players) // 2
        for one, other in zip(players[:half], reversed(players[half:]), strict=True):
            if host in (one, other):
                yield (host, host) if one is None or other is None else (one, other)
        players[1:] = [players[-1], *players[1:-1]]


def _one_way(own: int, other: int, *, sends: bool) -> list[Point]:
    """Seconds of messages to another process, smallest first; the receiver learns nothing."""
    if own == other:
        return []
    if not sends:
        _answer_all(other)
        return []
    latency = min(_sent(other, SMALL) for _ in range(PINGS)) / 2
    points = [(float(SMALL), latency)]
    size, seconds = SMALL, 0.0
    while seconds < LONG_ENOUGH and size < LARGEST:
        size *= GROWTH
        seconds = min(_sent(other, size) for _ in range(ROUNDS)) - latency
        points.append((float(size), seconds))
    _announce(other, DONE)
    return points


def _sent(other: int, size: int) -> float:
    """Seconds until a message is answered."""
    message = torch.zeros(size, dtype=torch.uint8)
    begin = time.perf_counter()
    _announce(other, size)
    dist.send(message, other)
    dist.recv(torch.empty(1), other)
    return time.perf_counter() - begin


def _announce(other: int, size: int) -> None:
    dist.send(torch.tensor(size), other)


def _answer_all(other: int) -> None:
    """Receive and answer messages until none is to come."""
    size = torch.empty((), dtype=torch.int64)
    while True:
        dist.recv(size, other)
        if int(size) == DONE:
            return
        dist.recv(torch.empty(int(size), dtype=torch.uint8), other)
        dist.send(torch.zeros(1), other)


def _port(own: int, host: int, hosts: int, here: int, size: int) -> tuple[float, float]:
    """Bytes/s of what leaves a host, and of what enters it, with all others at the same time."""
    return _rate(own, host, hosts, here, size, out=True), _rate(
        own, host, hosts, here, size, out=False
    )


def _rate(own: int, host: int, hosts: int, here: int, size: int, *, out: bool) -> float:
    """Bytes/s between the first process of a host and those of all others."""
    centre, others = host * here, [each * here for each in range(hosts) if each != host]
    times = []
    for _ in range(ROUNDS):
        dist.barrier()
        begin = time.perf_counter()
        if own == centre:
            _exchange(others, size, out=out)
        elif own in others:
            _exchange([centre], size, out=not out)
        times.append(time.perf_counter() - begin)
    seconds = torch.tensor(min(times), dtype=torch.float64)
    dist.broadcast(seconds, centre)
    return len(others) * size / float(seconds)


def _exchange(others: list[int], size: int, *, out: bool) -> None:
    """Send to, or receive from, some processes at the same time, and the answers."""
    messages = [torch.zeros(size, dtype=torch.uint8) for _ in others]
    answers = [torch.zeros(1) for _ in others]
    there, back = (dist.isend, dist.irecv) if out else (dist.irecv, dist.isend)
    for move, values in ((there, messages), (back, answers)):
        works = [move(value, other) for value, other in zip(values, others, strict=True)]
        for work in works:
            if work is not None:
                work.wait()

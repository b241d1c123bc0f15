"""The offset of each process's clock from that of the first.

As in NTP: the first process's clock, read between a ping and its pong, is compared
with the midpoint of the two. The fastest round trip gives the tightest bound on
the error: half of its duration.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import distributed

ROUNDS = 30
WARM_UP = 5  # the first trips open the connection


@dataclass(frozen=True)
class ClockOffset:
    """The offset of this clock from the first process's, in nanoseconds.

    An offset within the uncertainty counts as none: the processes of one
    machine share its clock, and must not be moved apart by noise.
    """

    measured: int
    uncertainty: int

    @property
    def nanoseconds(self) -> int:
        """Seconds to subtract from this process's time to get the first one's."""
        return self.measured if abs(self.measured) > self.uncertainty else 0


def measure_offset(
    group: distributed.ProcessGroup | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
    rounds: int = ROUNDS,
) -> ClockOffset:
    """The offset of this process; all processes of the (gloo) group call it together."""
    processes = distributed.get_world_size(group)
    if distributed.get_rank(group) == 0:
        for peer in range(1, processes):
            _answer(group, peer, clock, rounds)
        return ClockOffset(0, 0)
    trips = [_ask(group, clock) for _ in range(WARM_UP + rounds)]
    return min(trips[WARM_UP:], key=lambda trip: trip.uncertainty)


def _ask(group: distributed.ProcessGroup | None, clock: Callable[[], int]) -> ClockOffset:
    first_clock = torch.zeros(1, dtype=torch.int64)
    sent = clock()
    distributed.send(first_clock, group=group, group_dst=0)
    distributed.recv(first_clock, group=group, group_src=0)
    received = clock()
    # Rounded up, so that the true offset is never outside.
    half = (received - sent + 1) // 2
    return ClockOffset(sent + half - int(first_clock), half + 1)


def _answer(
    group: distributed.ProcessGroup | None, peer: int, clock: Callable[[], int], rounds: int
) -> None:
    ping = torch.zeros(1, dtype=torch.int64)
    for _ in range(WARM_UP + rounds):
        distributed.recv(ping, group=group, group_src=peer)
        distributed.send(torch.tensor([clock()]), group=group, group_dst=peer)

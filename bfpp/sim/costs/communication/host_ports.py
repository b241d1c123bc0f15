"""The ports of hosts, which all that leaves or enters a host shares.

Rules:

- A host has a port out, and one in. A transfer between hosts passes the port out of the one and
  into the other, and nothing else by the same way between them at the same time is faster than
  what was measured there for one transfer.
- Replicas are alike: where those of a pipeline rank share a host, all of them send at the same
  time, and a task moves the bytes of all.
- A collective passes both ports of its rank's host, if its group is on several hosts.
- Within a host, transfers do not share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bfpp.schedules import InvalidConfiguration
from bfpp.schedules.columns import NONE, Flags, Integers, Seconds
from bfpp.sim.engines.cost_model import Load

WIDTH = 3
"""Ports that a transfer passes: out of a host, into another, and the way between them."""


@dataclass(frozen=True, eq=False)
class HostPorts:
    """The ports of hosts in bytes/s, of ways between them, and the hosts of pipeline ranks.

    `processes` are those of each host; those of a rank's replicas follow one another. `way` is
    the bandwidth between hosts, by sender and receiver.
    """

    processes: Integers
    out: Seconds
    into: Seconds
    way: Seconds
    ranks: int
    replicas: int

    @cached_property
    def _host_of_process(self) -> Integers:
        host = np.repeat(np.arange(len(self.processes), dtype=np.int32), self.processes)
        if len(host) < self.ranks * self.replicas:
            raise InvalidConfiguration(
                "profile",
                f"its hosts hold {len(host)} processes, not {self.ranks} ranks x {self.replicas}",
            )
        of_ranks: Integers = host[: self.ranks * self.replicas].reshape(self.ranks, self.replicas)
        return of_ranks

    @cached_property
    def host(self) -> Integers:
        """The host of each rank of the first replica, for which a step is priced."""
        host: Integers = self._host_of_process[:, 0]
        return host

    @cached_property
    def _replicas_there(self) -> Integers:
        """By rank: the replicas on the host of the first."""
        there: Integers = (self._host_of_process == self.host[:, None]).sum(axis=1)
        return there

    @cached_property
    def _is_spread(self) -> Flags:
        """By rank: flags of replicas on several hosts."""
        spread: Flags = self._replicas_there < self.replicas
        return spread

    @property
    def bandwidth(self) -> Seconds:
        """Bytes/s of all ports: out of hosts, into them, and ways between them."""
        return np.concatenate((self.out, self.into, self.way.ravel()))

    def transfer(
        self, sender: Integers, receiver: Integers, latency: Seconds, sent: Seconds
    ) -> Load:
        """Transfers of `sent` bytes between ranks."""
        hosts, (start, end) = len(self.out), (self.host[sender], self.host[receiver])
        apart = start != end
        ports = np.stack([start, hosts + end, (2 + start) * hosts + end], axis=1)
        within = sent / self.way[start, end]
        return Load(
            latency + np.where(apart, 0.0, within),
            np.where(apart, sent * self._replicas_there[sender], 0.0),
            np.where(apart[:, None], ports, NONE),
        )

    def collective(self, rank: Integers, fixed: float, seconds: Seconds) -> Load:
        """Collectives among a rank's replicas; `seconds` are their bytes' without contention."""
        hosts, host, spread = len(self.out), self.host[rank], self._is_spread[rank]
        alone = np.minimum(self.out, self.into)[host]
        ports = np.stack([host, hosts + host, np.full_like(host, NONE)], axis=1)
        return Load(
            fixed + np.where(spread, 0.0, seconds),
            np.where(spread, seconds * alone, 0.0),
            np.where(spread[:, None], ports, NONE),
        )

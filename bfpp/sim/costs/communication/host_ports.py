"""The ports of hosts, which all that leaves or enters a host shares.

Rules:

- A host has a port out, and one in. A transfer between hosts passes the port out of the one and
  into the other, and nothing else by the same way between them at the same time is faster than
  what was measured there for one transfer.
- Replicas are alike: where those of a pipeline rank share a host, all of them send at the same
  time, and a task moves the bytes of all.
- A collective passes both ports of its rank's host, if its group is on several hosts. All groups
  that are there were measured at the same time, so each with its part of the ports.
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
    the bandwidth between hosts, by sender and receiver. `together` has the same number for ranks
    whose replicas reduce gradients together, those that hold copies of the same stages.
    """

    processes: Integers
    out: Seconds
    into: Seconds
    way: Seconds
    together: Integers
    replicas: int

    @cached_property
    def _host_of_process(self) -> Integers:
        host = np.repeat(np.arange(len(self.processes), dtype=np.int32), self.processes)
        ranks, replicas = len(self.together), self.replicas
        if len(host) < ranks * replicas:
            reason = f"its hosts hold {len(host)} processes, not {ranks} ranks x {replicas}"
            raise InvalidConfiguration("profile", reason)
        of_ranks: Integers = host[: ranks * replicas].reshape(ranks, replicas)
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
    def _is_there(self) -> Flags:
        """By group of ranks that reduce together, and by host: flags of its members' hosts."""
        there = np.zeros((len(self.together), len(self.out)), dtype=bool)
        there[self.together[:, None], self._host_of_process] = True
        return there

    @cached_property
    def _is_spread(self) -> Flags:
        """By group: flags of members on several hosts."""
        spread: Flags = self._is_there.sum(axis=1) > 1
        return spread

    @cached_property
    def _groups_there(self) -> Integers:
        """By host: the groups that are there and elsewhere."""
        groups: Integers = self._is_there[self._is_spread].sum(axis=0)
        return groups

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
        """Collectives of a rank's group; `seconds` are their bytes' beside all groups there."""
        hosts, host, spread = len(self.out), self.host[rank], self._is_spread[self.together[rank]]
        share = np.minimum(self.out, self.into)[host] / np.maximum(self._groups_there[host], 1)
        ports = np.stack([host, hosts + host, np.full_like(host, NONE)], axis=1)
        return Load(
            fixed + np.where(spread, 0.0, seconds),
            np.where(spread, seconds * share, 0.0),
            np.where(spread[:, None], ports, NONE),
        )

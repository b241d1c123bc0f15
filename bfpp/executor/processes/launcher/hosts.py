"""The hosts of processes that we start ourselves: this machine, or others that share its files."""

from __future__ import annotations

from dataclasses import dataclass

from bfpp.executor.processes.environment import HOST
from bfpp.executor.processes.network import loopback


@dataclass(frozen=True)
class Hosts:
    """Hosts that hold as many processes each, in the order of their numbers.

    A command on a host begins with the words `enter` and the host's name, and must be the process
    that these start. They reach this machine, which hosts the store, at `address`, and each other
    by `interface`.
    """

    address: str
    interface: str | None
    enter: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def processes_on_each(self, processes: int) -> int:
        """The number of processes on a host; all hosts but the last are full."""
        return -(-processes // max(1, len(self.names)))

    def prefix(self, process: int, processes: int) -> tuple[str, ...]:
        """The words that begin a process's command."""
        if not self.names:
            return ()
        return (*self.enter, self.names[process // self.processes_on_each(processes)])


HERE = Hosts(HOST, loopback())
"""This machine alone, where nobody else is to reach the processes."""

"""The context of a process: its number among the others, its watch, and how it joins them.

Processes of our own launcher get the same environment variables as torchrun's,
so both join in one way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from torch import distributed

from bfpp.executor.events import Message
from bfpp.executor.processes.environment import store_host
from bfpp.executor.processes.launcher.sigterm import Stop, offer
from bfpp.executor.processes.watch.heartbeats import EVERYONE, Activity, Limits
from bfpp.executor.processes.watch.watch import Watch

ON_DEMAND = "TORCH_GLOO_LAZY_INIT"
FOREVER = timedelta(days=30)


@dataclass(frozen=True)
class ProcessContext:
    """One process of the run, numbered as torch does: `process` of `processes`.

    `local` is the number on its host, and so of its GPU. `send` passes messages
    from the first process to the launcher; elsewhere it does nothing. `stop`
    says whether this process was asked to end the run gracefully.
    """

    process: int
    processes: int
    local: int
    store: distributed.Store
    watch: Watch
    limits: Limits
    send: Callable[[Message], None]
    stop: Stop = field(default_factory=Stop)

    @property
    def is_first(self) -> bool:
        """True for the process that returns the outcome of the run."""
        return self.process == 0

    @property
    def others(self) -> tuple[int, ...]:
        """All other processes, if there are any, as peers of an activity."""
        return (EVERYONE,) if self.processes > 1 else ()

    def offer_to_stop(self) -> None:
        """From now on, SIGTERM stops the run gracefully and not at once."""
        if self.is_first:
            offer(self.store)

    @property
    def timeout(self) -> timedelta:
        """The timeout of a communication."""
        return self.limits.communication


def connect(timeout: timedelta) -> distributed.Store:
    """A connection of its own to the store that the environment names.

    Waiting for a key blocks all users of a connection, so each thread that must
    not wait has its own.
    """
    return distributed.TCPStore(
        store_host(os.environ),
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timeout,
        wait_for_workers=False,
    )


MESHED = 64
"""Processes up to which gloo connects each with all others at once."""


def join(context: ProcessContext) -> None:
    """Make the default process group: over gloo, whatever the devices.

    Of many processes, two are connected with the first message between them: a process has a
    connection for each of those that it sends to, not for all.
    """
    if context.processes > MESHED:
        os.environ.setdefault(ON_DEMAND, "1")
    with context.watch.during(Activity("joining the process group", context.others)):
        distributed.init_process_group(
            "gloo",
            store=distributed.PrefixStore("group", context.store),
            rank=context.process,
            world_size=context.processes,
            timeout=context.timeout,
        )


def part(context: ProcessContext) -> None:
    """Undo `join`, if it was called."""
    if distributed.is_initialized():
        with context.watch.during(Activity("leaving the process group")):
            distributed.destroy_process_group()


def use_cores(processes: int) -> None:
    """Divide the host's cores among its processes, unless the user has."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores() // processes))


def cores() -> int:
    """The cores that this process may use, if the system says; else all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
